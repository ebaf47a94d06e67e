"""`kvsim options`: the operator's options on one workload, with intervals, paired differences and advice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvsim.cli.common import Command, Hardware, Json, Model, Progress, Set, emit_json, note, show

if TYPE_CHECKING:
    from kvsim.study.options import Options, Row


def options(
    scenario: str | None = None,
    /,
    *,
    static: bool = False,
    load_search: bool = True,
    sample: int = 1000,
    replications: int = 1,
    slow: bool = False,
    workers: int = 2,
    cluster: str | None = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    set_: Set = None,
    hardware: Hardware = None,
    model: Model = None,
    command: Command = None,
    json: Json = False,
) -> int:
    """Compare what an operator could change: HiCache, write policy, fp8 KV, batch cap, speculation, page size, DP attention, machines.

    Parameters
    ----------
    scenario
        A scenario file or a bundled name, with a workload and an `slo:` block.
    static
        Memory only, at once: no simulation.
    load_search
        Also find the largest load that meets the SLO, on a sample of the workload.
    sample
        Requests of that sample.
    replications
        Runs per option with other seeds; a recorded trace is resampled in blocks of five minutes.
    slow
        Simulate DP attention on large workloads too (its ranks go step by step: minutes).
    workers
        Local processes.
    cluster
        Run on a Dask cluster: an address, or local:N.
    output
        Keep every run in this folder as it ends; an interrupted table goes on from there.
    """
    from kvsim.cli.study_common import interrupted, scenario_of
    from kvsim.study.executor import cluster_executor
    from kvsim.study.option_advice import options_advice
    from kvsim.study.options import options_table
    from kvsim.study.point import plain_scenario
    from kvsim.study.store import Store

    base = plain_scenario(scenario_of(scenario, set_, hardware, model, command))
    if static:
        from kvsim.cli.options_static import print_static

        return print_static(base, json)
    progress = Progress("options done", None)
    with interrupted(output), cluster_executor(cluster) as executor:
        try:
            table = options_table(
                base,
                replications=replications,
                search=load_search,
                sample=sample,
                slow=slow,
                workers=workers,
                executor=executor,
                store=Store(output) if output else None,
                progress=progress,
            )
        finally:
            progress.close()
    advice = options_advice(table)
    if json:
        emit_json(_data(table, advice))
    else:
        _print(table, advice)
    return 0


def _row_data(table: Options, row: Row) -> dict[str, Any]:
    from dataclasses import asdict

    out: dict[str, Any] = {
        "option": row.option.name,
        "remark": row.option.remark,
        "set": list(row.option.sets),
        "infeasible": row.reason or None,
        "capacity": row.capacity,
        "largest_load": row.load,
    }
    if row.summaries:
        out["overloaded"] = any(summary["overload"]["overloaded"] for summary in row.summaries)
        out["load_states"] = [summary["overload"].get("state") for summary in row.summaries]
        out["binding"] = row.summaries[0]["binding"]
        out["figures"] = {name: _estimate(row, name) for name in FIGURES}
        found = {name: table.difference(row, name) for name in ("ttft_s", "tpot_s", "good", "hit_tokens")}
        out["difference_to_as_is"] = {name: None if d is None else {**asdict(d), "clear": d.clear} for name, d in found.items()}
    return out


def _data(table: Options, advice: str) -> dict[str, Any]:
    return {
        "advice": advice,
        "load_key": table.load_key,
        "load_sample": table.sample,
        "slo": table.slo,
        "options": [_row_data(table, row) for row in table.rows],
    }


#: shown figure -> how to find it in a summary: (block, key)
FIGURES = {
    "ttft_p50_s": ("ttft_s", "p50"),
    "ttft_p99_s": ("ttft_s", "p99"),
    "tpot_mean_s": ("tpot_s", "mean"),
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "goodput_requests_per_s": ("slo", "goodput_requests_per_s"),
    "hit_rate": ("hits", "hit_rate"),
}


#: figures that are shares
MOST = {"hit_rate": 1.0}


def _estimate(row: Row, name: str) -> dict[str, Any]:
    """Return a figure with its 95 % interval: over replications, else within the one run where it has one."""
    from kvsim.measure.steady import replication_estimate, within

    block, key = FIGURES[name]
    values = [value for summary in row.summaries if (value := (summary[block] or {}).get(key)) is not None]
    if not values:
        return {"value": None, "low": None, "high": None}
    if len(values) > 1:
        found = replication_estimate(values)
        half = found.half_width or 0.0
        low, high = within(found.mean - half, found.mean + half, most=MOST.get(name, math.inf))
        return {"value": found.mean, "low": low, "high": high}
    return {"value": values[0], **dict(zip(("low", "high"), _within(row.summaries[0], name, values[0]), strict=True))}


def _within(summary: dict[str, Any], name: str, value: float) -> tuple[float | None, float | None]:
    block, key = FIGURES[name]
    if name.startswith("ttft"):
        found = summary[block]["intervals"].get(key)
        return (None, None) if found is None else (found[0], found[1])
    if name == "goodput_requests_per_s":
        return _goodput_interval(summary, value)
    half = summary[block]["half_width"] if name == "tpot_mean_s" else None
    return (None, None) if half is None else (max(0.0, value - half), value + half)


def _goodput_interval(summary: dict[str, Any], value: float) -> tuple[float | None, float | None]:
    """Return the interval of goodput: that of the share within the SLO (Wilson's, so never below nothing nor above everything) times the rate."""
    from kvsim.measure.compare import difference_of
    from kvsim.measure.steady import share_interval

    share = summary["slo"]["attainment"]
    spread = difference_of([good for good in summary["batches"]["good"] if good is not None])
    if not share or spread is None or spread.half_width is None:
        return None, None
    low, high = share_interval(share, spread.half_width, summary["requests"]["total"])
    return value / share * low, value / share * high


def _print(table: Options, advice: str) -> None:
    from rich.table import Table
    from rich.text import Text

    figures = Table(title="options: the same requests, one change each", title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("option", "TTFT p50 s", "TTFT p99 s", "TPOT ms", "goodput req/s", ""):
        figures.add_column(name, justify="left" if name in ("option", "") else "right")
    changes = Table(
        title=f"against as is (paired), and the largest {table.load_key.rpartition('.')[2]} that meets the SLO",
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in (
        "option",
        "RAM GB",
        "out tok/s",
        "hit rate",
        "mean TTFT s",
        "within SLO %",
        f"largest {table.load_key.rpartition('.')[2]}",
    ):
        changes.add_column(name, overflow="fold", justify="left" if name == "option" else "right")
    for row in table.rows:
        if not row.summaries:
            figures.add_row(row.option.name, "left out" if row.reason.startswith("left out") else "infeasible", "", "", "", "", style="dim")
            note(f"{row.option.name}: {row.reason}")
            continue
        figures.add_row(*_figure_cells(row))
        changes.add_row(*_change_cells(table, row))
    searched = any(row.load is not None for row in table.rows)
    tail = "[low, high] and ± are 95 %; - where too few values give one. Differences are paired over batches of the same requests. " + (
        f"Largest load: searched on {table.sample}; the answer lies between the two numbers." if searched else "Largest load: not searched."
    )
    remarks = [f"{row.option.name}: {row.option.remark}" for row in table.rows if row.option.remark and row.summaries]
    assumptions = table.base.capacity.get("assumptions", ())
    words = f"{tail} {'. '.join(remarks)}. Assumptions: {'; '.join(assumptions)}."
    show(figures, changes, Text(advice, style="bold"), Text(words, style="dim"))


def _figure_cells(row: Row) -> list[str]:
    states = [summary["overload"].get("state") for summary in row.summaries]
    mark = next((state for state in ("overloaded", "near the limit") if state in states), "")
    return [
        row.option.name,
        _shown(_estimate(row, "ttft_p50_s")),
        _shown(_estimate(row, "ttft_p99_s")),
        _shown(_estimate(row, "tpot_mean_s"), 1000),
        _shown(_estimate(row, "goodput_requests_per_s")),
        mark,
    ]


def _shown(estimate: dict[str, Any], scale: float = 1.0) -> str:
    if estimate["value"] is None:
        return "-"
    text = f"{estimate['value'] * scale:.3g}"
    return text if estimate["low"] is None else f"{text} [{estimate['low'] * scale:.2g}, {estimate['high'] * scale:.2g}]"


def _change_cells(table: Options, row: Row) -> list[str]:
    rate = _estimate(row, "hit_rate")["value"]
    flow = _estimate(row, "output_tokens_per_s")["value"] or 0
    cells = [
        row.option.name,
        f"{row.capacity['host_bytes_total'] / 1e9:,.0f}",
        f"{flow:.3g}",
        "-" if rate is None else f"{100 * rate:.1f} %",
    ]
    for name, scale in (("ttft_s", 1.0), ("good", 100.0)):
        found = table.difference(row, name)
        if row is table.base or found is None:
            cells.append("")
            continue
        half = "" if found.half_width is None else f" ± {found.half_width * scale:.2g}"
        cells.append(f"{found.mean * scale:+.3g}{half}")
    return [*cells, _load(row.load)]


def _load(load: dict[str, Any] | None) -> str:
    if load is None:
        return "-"
    if load["meets"] is None and load["unsure"]:
        return "unsure" if load["fails"] is None else f"unsure, below {load['fails']:.3g}"
    if load["meets"] is None:
        return f"below {load['low']:.3g}"
    return f"over {load['meets']:.3g}" if load["fails"] is None else f"{load['meets']:.3g} to {load['fails']:.3g}"
