"""`kvsim curve`: hit rate of all cache sizes in one pass over a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvsim.cli.common import Hardware, Json, Model, Set, emit_json, resolve_scenario, show

if TYPE_CHECKING:
    from kvsim.config.resolved import Resolved

RATIOS = "0,1,2,4,8,16,32,64"
DEFINITION = (
    "Hit rate: prompt tokens whose prefix was used before and still fits, over all prompt tokens. LRU, write-through, an inclusive host "
    "tier, one engine, everybody served at once: for queueing and latency run the simulation."
)


def curve(
    trace: str,
    /,
    *,
    scenario: str | None = None,
    hardware: Hardware = None,
    model: Model = None,
    set_: Set = None,
    format_: Annotated[str | None, Parameter(name="--format")] = None,
    block: Annotated[int, Parameter(name=["--block", "--page-size"])] = 512,
    rate_scale: float = 1.0,
    ratios: str = RATIOS,
    sample: float | None = None,
    belady: bool = False,
    json: Json = False,
) -> int:
    """Print the LRU hit rate of every cache size in one pass over a trace; with a machine, mark its HiCache ratios.

    Parameters
    ----------
    trace
        A trace file.
    scenario
        The machine whose ratios are marked (or --hardware and --model).
    format_
        The trace's format, if it cannot be told.
    block
        Tokens per block of content; the engine's page, or the trace's own block where prompts differ only at its borders.
    rate_scale
        Multiply the rate: times are divided by it (for reuse in time).
    ratios
        Host sizes to mark, in multiples of the device pool.
    sample
        Follow only this share of the content (SHARDS, with its error); by default all of it up to ten million references.
    belady
        Add Belady's bound (no policy does better) at the marked sizes.
    """
    from kvsim.measure.curve import hit_curve
    from kvsim.measure.references import references
    from kvsim.workload.read import open_trace

    _check(block, rate_scale, sample)
    machine = None if scenario is None and hardware is None else resolve_scenario(scenario, set_=set_, hardware=hardware, model=model)
    refs = references(open_trace(trace, format_), block, rate_scale)
    result = hit_curve(refs, sample=sample)
    report = {
        "references": result.references,
        "prompt_tokens": result.total,
        "ceiling": result.ceiling,
        "knee_tokens": result.knee(),
        "working_set_tokens": result.working_set(),
        "sampled": result.sampled,
        "marks": _marks(result, refs, machine, _ratios(ratios), belady),
        "reuse": _reuse(refs, machine) if result.sampled == 1 else None,
    }
    if json:
        emit_json(report)
    else:
        _print(report, trace, machine)
    return 0


def _check(block: int, rate_scale: float, sample: float | None) -> None:
    from kvsim.errors import ConfigError

    faults = []
    if block < 1:
        faults.append(f"--block {block}: must be at least 1 token")
    if not 0 < rate_scale < float("inf"):
        faults.append(f"--rate-scale {rate_scale}: must be above 0")
    if sample is not None and not 0 < sample <= 1:
        faults.append(f"--sample {sample}: must be above 0, up to 1")
    if faults:
        raise ConfigError(faults)


def _ratios(text: str) -> list[float]:
    from kvsim.errors import ConfigError

    try:
        values = [float(value) for value in text.split(",")]
    except ValueError:
        values = [-1.0]
    if any(not 0 <= value < float("inf") for value in values):
        raise ConfigError(f"--ratios {text!r:.60}: must be numbers from 0, for example 0,1,2,4,8")
    return values


def _marks(result: Any, refs: Any, machine: Resolved | None, ratios: list[float], belady: bool) -> list[dict[str, Any]]:
    """Return one row per ratio of the machine, or per round capacity without one."""
    from kvsim.measure.curve import belady_rate

    capacities: list[tuple[float | None, int]]
    if machine is None:
        capacities = [(None, round(result.working_set() * part / 16)) for part in (1, 2, 4, 8, 12, 16)]
    else:
        device = machine.capacity.device_tokens
        capacities = [(ratio, max(device, int(device * ratio))) for ratio in ratios]
    rows = []
    for ratio, tokens in capacities:
        row: dict[str, Any] = {"ratio": ratio, "tokens": tokens, "hit_rate": result.rate(tokens), "error": result.error(tokens)}
        if machine is not None and ratio is not None:
            facts = machine.capacity
            row["device_rate"] = result.rate(facts.device_tokens)
            row["host_bytes_total"] = int(facts.device_tokens * ratio) * facts.kv_bytes_per_token * facts.host_copies
        if belady:
            row["belady_rate"] = belady_rate(refs, tokens)
        rows.append(row)
    return rows


def _reuse(refs: Any, machine: Resolved | None) -> list[dict[str, Any]]:
    from kvsim.measure.curve import reuse_times

    if machine is None:
        return reuse_times(refs)
    facts = machine.capacity
    return reuse_times(refs, (facts.device_tokens, max(facts.device_tokens, facts.host_tokens)))


def _print(report: dict[str, Any], trace: str, machine: Resolved | None) -> None:
    from rich.table import Table
    from rich.text import Text

    belady = any("belady_rate" in row for row in report["marks"])
    table = Table(title=f"LRU hit rate by cache size: {trace}", pad_edge=False, title_justify="left")
    for name in ("ratio", "tokens", "host RAM", "hit rate", "of it host", *(["Belady's bound"] if belady else [])):
        table.add_column(name, justify="right")
    for row in report["marks"]:
        sure = f" ± {196 * row['error']:.1f}" if row["error"] else ""
        cells = [
            "-" if row["ratio"] is None else f"{row['ratio']:g}",
            f"{row['tokens']:,}",
            f"{row['host_bytes_total'] / 1e9:,.0f} GB" if "host_bytes_total" in row else "-",
            f"{100 * row['hit_rate']:.2f}{sure} %",
            f"{100 * (row['hit_rate'] - row['device_rate']):.2f} %" if "device_rate" in row else "-",
        ]
        table.add_row(*cells, *([f"{100 * row['belady_rate']:.2f} %"] if belady else []))
    parts: list[Any] = [table, Text(_words(report))]
    if report["reuse"]:
        parts.append(_reuse_table(report["reuse"], machine is not None))
    parts.append(Text(DEFINITION, style="dim"))
    show(*parts)


def _words(report: dict[str, Any]) -> str:
    how = "exact" if report["sampled"] == 1 else f"sampled: {100 * report['sampled']:g} % of the content followed, ± are 95 % (SHARDS)"
    text = (
        f"{report['references']:,} references, {report['prompt_tokens']:,} prompt tokens, {how}. Ceiling {100 * report['ceiling']:.2f} %. "
    )
    if report["knee_tokens"] is None:
        return text + "Nothing is used twice: no cache size helps."
    return (
        text
        + f"Knee at {report['knee_tokens']:,} tokens (beyond it a token of cache brings less than average); working set "
        + (f"{report['working_set_tokens']:,} tokens (99 % of the ceiling).")
    )


def _reuse_table(rows: list[dict[str, Any]], machine: bool) -> Any:
    from rich.table import Table

    table = Table(title="Reuse by the time since the last use", pad_edge=False, title_justify="left")
    names = ("last use", "reused tokens", *(("device", "host", "lost") if machine else ()))
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        label = f"{row['from_s']:g} to {row['to_s']:g} s" if row["to_s"] is not None else f"over {row['from_s']:g} s"
        tiers = [f"{row[key]:,}" for key in ("device_tokens", "host_tokens", "lost_tokens")] if machine else []
        table.add_row(label, f"{row['reused_tokens']:,}", *tiers)
    return table
