"""`kvsim compare`: two runs of the same workload, paired by request."""

from __future__ import annotations

from typing import Any

from kvsim.cli.common import Json, emit_json, note, show


def compare(first: str, second: str, /, *, json: Json = False) -> int:
    """Compare two run directories, paired by request: mean differences with 95 % intervals.

    Parameters
    ----------
    first
        A run directory (`kvsim run -o`).
    second
        Another run of the same workload.
    """
    from kvsim.errors import ConfigError
    from kvsim.measure.compare import compare as pair
    from kvsim.record.store import read_run

    result = pair(read_run(first)[0], read_run(second)[0])
    if not result["requests"]["paired"]:
        raise ConfigError(f"{first} and {second} have no request in common: they are runs of different workloads")
    if not result["same_lengths"]:
        note("warning: requests of the same name have other prompts in the two runs: these are different workloads")
    if json:
        emit_json({"first": first, "second": second, **result})
    else:
        _print(first, second, result)
    return 0


def _print(first: str, second: str, result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    counts = result["requests"]
    table = Table(title=f"{counts['paired']:,} requests in both runs", title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("figure", "first", "second", "difference", "95 %", "smaller", "larger", ""):
        table.add_column(name, overflow="fold", justify="left" if name in ("figure", "") else "right")
    for name, row in result["figures"].items():
        if row is None:
            continue
        half = "-" if row["half_width"] is None else f"± {row['half_width']:.3g}"
        verdict = "" if row["half_width"] is None else "clear" if row["clear"] else "not clear"
        table.add_row(
            name,
            f"{row['first_mean']:.4g}",
            f"{row['second_mean']:.4g}",
            f"{row['difference']:+.4g}",
            half,
            f"{row['smaller']:,}",
            f"{row['larger']:,}",
            verdict,
        )
    show(
        table,
        Text(
            f"first: {first}; second: {second}. Difference: second - first, paired by request; intervals from batches of "
            "neighbouring requests. smaller, larger: requests whose figure fell or rose.",
            style="dim",
        ),
    )
