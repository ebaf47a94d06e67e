"""A run's summary for the terminal: rich tables that fit 100 columns, the verdict first, assumptions last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kvsim.config.resolved import Resolved

LATENCIES = (
    ("TTFT", "ttft_s"),
    ("  queue", "ttft_queue_s"),
    ("  load (exposed)", "ttft_load_s"),
    ("  prefill", "ttft_prefill_s"),
    ("TPOT", "tpot_s"),
    ("ITL", "itl_s"),
    ("E2E", "e2e_s"),
)


def run_tables(summary: dict[str, Any], resolved: Resolved) -> list[RenderableType]:
    """Return what `kvsim run` prints: verdict, latency table, traffic and memory lines, assumptions."""
    parts: list[RenderableType] = [Text(verdict(summary), style="bold"), latency_table(summary), facts_table(summary, resolved)]
    if summary.get("misses"):
        parts.append(miss_table(summary["misses"]))
    if resolved.capacity.assumptions:
        parts.append(Text("Assumptions: " + "; ".join(resolved.capacity.assumptions), style="dim"))
    return parts


def verdict(summary: dict[str, Any]) -> str:
    """Return the run in one sentence: SLO, overload, what binds."""
    requests = summary["requests"]
    text = f"{requests['finished']:,} of {requests['total']:,} requests finished"
    others = [f"{requests[key]:,} {key}" for key in ("refused", "aborted", "unfinished") if requests[key]]
    text += f" ({', '.join(others)})" if others else ""
    slo = summary["slo"]
    if slo is not None:
        state = "met" if slo["met"] else "missed"
        text += f"; SLO {state}: {attained(slo)} of requests, {100 * slo['attainment_wanted']:g} % wanted"
    overload = summary["overload"]
    if overload["overloaded"]:
        text += f". OVERLOADED: {'; '.join(overload['reasons'])} (steady-state numbers below do not exist: they grow with the run)"
    elif overload.get("state"):
        text += f". Load {overload['state']}" + (f": {'; '.join(overload['reasons'])}" if overload["reasons"] else "")
        text += " (waits swing widely and hold for this run only)" if overload["state"] == "near the limit" else ""
    return text + "."


def attained(slo: dict[str, Any]) -> str:
    """Return the share of requests within the SLO with as many digits as tell it from the share wanted."""
    share, wanted = 100 * (slo["attainment"] or 0), 100 * slo["attainment_wanted"]
    texts = [f"{share:.{digits}f}" for digits in range(1, 7)]
    told = [text for text in texts if (float(text) >= float(f"{wanted:g}")) == slo["met"]]
    return f"{(told or texts)[0]} %"


def latency_table(summary: dict[str, Any]) -> Table:
    """Return the latency table: mean with its 95 % half-width and count, percentiles."""
    table = Table(title=None, pad_edge=False)
    table.add_column("latency")
    for name in ("mean", "± 95 %", "p50", "p90", "p95", "p99", "n"):
        table.add_column(name, justify="right")
    for label, key in LATENCIES:
        values = summary[key]
        if values is None:
            continue
        half = values.get("half_width")
        table.add_row(
            label,
            seconds(values["mean"]),
            "-" if half is None else seconds(half),
            *(seconds(values[f"p{p}"]) for p in (50, 90, 95, 99)),
            f"{values['count']:,}",
        )
    return table


def facts_table(summary: dict[str, Any], resolved: Resolved) -> Table:
    """Return throughput, goodput, hits by tier, memory traffic, link use and load as two columns of facts."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _facts(summary, resolved):
        table.add_row(name, value)
    return table


def _facts(summary: dict[str, Any], resolved: Resolved) -> list[tuple[str, str]]:
    hits, cache, load, links = summary["hits"], summary["cache"], summary["load"], summary["links"]
    rows = []
    if summary["throughput"]:
        flow = summary["throughput"]
        rows.append(
            (
                "throughput",
                f"{flow['requests_per_s']:.3g} req/s, {flow['input_tokens_per_s']:,.0f} input "
                f"tok/s, {flow['output_tokens_per_s']:,.1f} output tok/s",
            )
        )
    if summary["slo"] is not None and summary["slo"]["goodput_requests_per_s"] is not None:
        rows.append(("goodput", f"{summary['slo']['goodput_requests_per_s']:.3g} req/s within the SLO"))
    if hits["hit_rate"] is not None:
        rows.append(
            (
                "hit tokens",
                f"device {hits['device_tokens']:,}, host {hits['host_tokens']:,}, miss "
                f"{hits['miss_tokens']:,}: hit rate {100 * hits['hit_rate']:.2f} %",
            )
        )
    rows.append(
        (
            "cache traffic",
            f"evicted {cache['evicted_tokens']:,}, backed up {cache['backed_up_tokens']:,}, loaded "
            f"back {cache['loaded_tokens']:,}, host evicted {cache['host_evicted_tokens']:,} tokens",
        )
    )
    rows.append(
        (
            "retractions",
            f"{summary['retractions']['count']:,} of {summary['retractions']['requests']:,} "
            f"requests, {summary['retractions']['tokens_thrown_away']:,} tokens thrown away",
        )
    )
    if load:
        capacity = resolved.capacity
        ranks = capacity.extra.get("dp", 1)  # ranks in lockstep: each has a pool of its own
        rows.append(
            (
                "load",
                f"running {load['running_mean']:.1f}, waiting {load['waiting_mean']:.1f} "
                f"(means); GPU busy {100 * load['gpu_busy']:.0f} %, of it prefill {100 * load['prefill_share']:.0f} %",
            )
        )
        rows.append(
            (
                "memory",
                f"device {load['device_tokens_mean']:,.0f} of {capacity.device_tokens * ranks:,} "
                f"tokens, host {load['host_tokens_mean']:,.0f} of {capacity.host_tokens * ranks:,} (means while busy)",
            )
        )
    rows.append(
        (
            "links",
            f"host to device {100 * links['h2d']['utilisation']:.2f} % busy, device to host {100 * links['d2h']['utilisation']:.2f} %",
        )
    )
    return rows


def miss_table(misses: dict[str, Any]) -> Table:
    """Return why prompt tokens missed the cache: one cause each, adding up to the misses."""
    table = Table(title="why prompt tokens missed", pad_edge=False)
    table.add_column("cause")
    table.add_column("tokens", justify="right")
    table.add_column("share", justify="right")
    table.add_column("remedy")
    total = sum(cause["tokens"] for cause in misses["causes"]) or 1
    for cause in misses["causes"]:
        table.add_row(cause["cause"], f"{cause['tokens']:,}", f"{100 * cause['tokens'] / total:.1f} %", cause.get("remedy") or "")
    return table


def seconds(value: float) -> str:
    """Return a time people can read: us, ms or s with three significant digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}" if abs(value) < 1000 * scale else f"{value / scale:,.0f} {unit}"
    return "0" if value == 0 else f"{value / 1e-9:.3g} ns"
