"""`kvsim verify`: replay recordings of a real engine's decisions and print the first difference."""

from __future__ import annotations

import dataclasses
import json as _json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvsim.cli.common import Json, Progress, emit, emit_json, emit_wrapped
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from kvsim.verify.cache_replay import Mismatch, ReplayResult
    from kvsim.verify.run import Totals

#: How much of the state around a mismatch is printed per entry (--json prints all of it).
MOST_SHOWN = 600

RuleSetting = Annotated[list[str] | None, Parameter(name="--rule", help="Override one rule: name=value (repeatable).", negative="")]


def verify(
    paths: Annotated[list[str], Parameter(name="PATH", negative="")],
    /,
    *,
    rule: RuleSetting = None,
    exact_steps: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Replay recordings of a real engine's decisions with the code that simulates; print the first difference.

    A recording lists arrivals (or cache operations) and every decision the engine took; each row is compared, field by
    field. Exit code 0: no difference; 1: some row differs (file, row, field, both values and the state around are
    printed); 2: a file that is no recording.

    Parameters
    ----------
    paths
        Recordings, or folders of recordings (kvsim-oracle/1, kvsim-sched-oracle/1, kvsim-vllm-oracle/1).
    rule
        Replay under another single rule (`--rule defects=keep`): what would break without it.
    exact_steps
        Replay scheduler recordings step by step, without closed-form runs of decode steps.
    json
        Print machine-readable JSON.
    """
    from kvsim.verify.run import find_recordings, totals, verify_file

    if not paths:
        raise ConfigError("name at least one recording or folder of recordings")
    files, overrides = find_recordings(paths), parse_rules(rule or [])
    progress = Progress("verified", len(files))
    results: list[ReplayResult] = []
    for path in files:
        results.append(verify_file(path, overrides, stepwise=exact_steps))
        if not json:
            progress.close()
            emit_wrapped(line(results[-1]), " " * 9)
        progress(len(results))
    progress.close()
    sums = totals(results)
    if json:
        emit_json(_as_json(results, sums))
    else:
        _show_totals(results, sums)
    return 0 if all(result.ok for result in results) else 1


def parse_rules(settings: list[str]) -> dict[str, object]:
    """Return ``name=value`` settings as a mapping; values are read as YAML scalars. ConfigError for anything else."""
    import yaml

    out: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"--rule takes name=value, not '{setting}'")
        try:
            out[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            out[name.strip()] = value
    return out


def line(result: ReplayResult) -> str:
    """Return one file's verdict in one line."""
    name = Path(result.file).name
    if result.mismatch is not None:
        where = _where(result.mismatch)
        return f"DIFFERS  {name}: {where}, {result.mismatch.field}"
    if result.finding:
        return f"finding  {name}: {result.rows:,} rows, then: {result.finding}"
    return f"same     {name}: {result.rows:,} rows"


def _where(mismatch: Mismatch) -> str:
    return "at the end" if mismatch.row < 0 else f"row {mismatch.row}"


def _show_totals(results: list[ReplayResult], sums: list[Totals]) -> None:
    emit("")
    for total in sums:
        tail = f", {total.findings} with a finding" if total.findings else ""
        emit_wrapped(
            f"{total.rules or 'unknown rules'}: {total.files} files, {total.rows:,} rows compared, {total.differing} files differ{tail}"
        )
    first = next((result for result in results if result.mismatch is not None), None)
    if first is not None and first.mismatch is not None:
        emit("")
        emit_wrapped(difference(first.file, first.mismatch), "    ")


def difference(file: str, mismatch: Mismatch) -> str:
    """Return a mismatch in full: file, row, field, expected, got, and the state around it."""
    parts = [
        f"first difference: {file}",
        f"  {_where(mismatch)}, field '{mismatch.field}'",
        f"  expected: {_shown(mismatch.expected)}",
        f"  got:      {_shown(mismatch.got)}",
    ]
    parts += [f"  {name}: {_shown(value)}" for name, value in mismatch.around.items()]
    return "\n".join(parts)


def _shown(value: Any) -> str:
    text = _json.dumps(value, default=str)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ... ({len(text):,} characters, --json has all)"


def _as_json(results: list[ReplayResult], sums: list[Totals]) -> dict[str, Any]:
    return {
        "ok": all(result.ok for result in results),
        "totals": [dataclasses.asdict(total) for total in sums],
        "files": [dataclasses.asdict(result) | {"ok": result.ok} for result in results],
    }
