"""What the lab page computes: from its controls to figures, advice and downloads."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError, KvsimError
from kvsim.web.choice import DTYPES, Choice, expected_requests, hardware_names, model_names, scenario_data, start_of, workload_names

__all__ = [
    "DTYPES",
    "FIRST",
    "LATER",
    "SMALL",
    "Answer",
    "Choice",
    "advice",
    "answer_with_curve",
    "downloads",
    "expected_requests",
    "figures_of",
    "hardware_names",
    "headline",
    "hit_curve_figure",
    "launch_command",
    "model_names",
    "ratio_curve",
    "ratio_figure",
    "resolve_choice",
    "save_trace",
    "scenario_data",
    "simulate_answer",
    "start_of",
    "workload_names",
]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvsim.config.resolved import Resolved
    from kvsim.measure.curve import Curve
    from kvsim.record.recording import Recording
    from kvsim.report.style import Figure
    from kvsim.workload.spec import RequestSpec

#: Figures shown at once, and those drawn when somebody opens them.
FIRST, LATER = ("card", "host", "latency", "ttft-split", "ttft-time"), ("occupancy", "queue", "hits-time", "hits-turn", "links", "gpu")
#: A load of so many requests is simulated at every move of a control; a larger one when asked to.
SMALL = 1500


@dataclass
class Answer:
    """What was simulated: ``problem`` instead of everything else if it cannot be."""

    resolved: Resolved | None = None
    recording: Recording | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def resolve_choice(choice: Choice) -> Answer:
    """Return the resolved scenario of the controls, or the problem; memory needs no simulation."""
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve
    from kvsim.cost.resolve import with_cost_notes

    try:
        resolved = with_cost_notes(resolve(load_data(scenario_data(choice), [], "lab")))
    except KvsimError as error:
        return Answer(problem=str(error))
    reasons = resolved.capacity.infeasible
    return Answer(resolved=resolved, problem="; ".join(reasons))


def simulate_answer(answer: Answer, progress: Callable[[int], None] | None = None) -> Answer:
    """Return the answer with its recording and summary; unchanged if there is a problem. Cancelled passes through."""
    from kvsim.measure.summary import summarise
    from kvsim.sim.simulate import simulate
    from kvsim.web.job import Cancelled

    if answer.problem or answer.resolved is None:
        return answer
    try:
        recording = simulate(answer.resolved, progress=progress)
    except Cancelled:
        raise
    except KvsimError as error:
        return Answer(resolved=answer.resolved, problem=str(error))
    return Answer(answer.resolved, recording, summarise(recording))


def answer_with_curve(answer: Answer, progress: Callable[[int], None] | None = None) -> Answer:
    """Return the answer of a large load as `simulate_answer` does; its curve is made too, so that showing it takes no time."""
    done = simulate_answer(answer, progress)
    hit_curve_figure(done)
    return done


def figures_of(answer: Answer, keys: Sequence[str] | None = None) -> dict[str, Figure]:
    """Return the answer's figures by key (only ``keys`` if given); only those of memory if nothing was simulated."""
    from kvsim.report.figures import builders, memory_pictures

    if answer.resolved is None:
        return {}
    capacity = answer.resolved.capacity
    if answer.recording is None:
        with unchecked():
            return {figure.key: figure for figure in memory_pictures(capacity) if keys is None or figure.key in keys}
    made = builders(answer.recording, answer.summary, capacity)
    with unchecked():
        return {key: build() for key, build in made.items() if keys is None or key in keys}


def headline(answer: Answer) -> str:
    """Return the answer in a sentence."""
    from kvsim.report.terminal import verdict

    if answer.problem:
        return answer.problem
    return verdict(answer.summary) if answer.summary else "Not simulated yet."


def advice(answer: Answer) -> list[str]:
    """Return what the numbers suggest to an operator, each with its reason; every sentence follows from the summary."""
    if answer.resolved is None or not answer.summary:
        return []
    capacity, summary = answer.resolved.capacity, answer.summary
    out = []
    load, hits = summary["load"] or {}, summary["hits"]
    if summary["overload"]["overloaded"]:
        out.append("The load is more than this machine can serve: its queue grows as long as it lasts. Lower the rate, or add machines.")
    if summary["retractions"]["count"]:
        out.append(
            f"{summary['retractions']['count']:,} retractions: memory ran out while decoding. A lower batch cap avoids computing twice."
        )
    out += _tier_advice(capacity, load, hits)
    parts = {name: (summary.get(f"ttft_{name}_s") or {}).get("p99") or 0.0 for name in ("queue", "load", "prefill")}
    worst = max(parts, key=lambda name: parts[name])
    if parts[worst] > 0:
        out.append(f"The slow requests wait mostly for {worst} (p99 {parts[worst]:.3g} s).")
    return out


def _tier_advice(capacity: Any, load: dict[str, Any], hits: dict[str, Any]) -> list[str]:
    out = []
    device_full = load.get("device_tokens_max", 0) >= 0.95 * capacity.device_tokens
    if capacity.host_tokens:
        host_full = load.get("host_tokens_max", 0) >= 0.95 * capacity.host_tokens
        share = 100 * (hits["host_rate"] or 0)
        if not hits["host_tokens"]:
            out.append("The host tier served nothing: everything that came back was still on the device, or nothing came back.")
        elif host_full:
            out.append(f"The host tier is full and serves {share:.1f} % of prompt tokens: a larger ratio may serve more. Try it.")
        else:
            out.append(f"The host tier serves {share:.1f} % of prompt tokens and never filled up: a larger ratio would change nothing.")
    elif device_full:
        out.append("The device pool was full and there is no host tier: what is evicted is computed again. Try a ratio of 1.")
    else:
        out.append("The device pool never filled up: a host tier would change nothing for this load.")
    return out


def specs_of(resolved: Resolved) -> Iterator[RequestSpec]:
    """Yield the requests of a scenario as its clients would send them if every answer came at once."""
    from kvsim.workload.build import build_client

    client = build_client(resolved.scenario.workload, seed=resolved.scenario.run.seed, clients=resolved.scenario.clients)
    while (now := client.next_send()) is not None:
        for spec in client.send(now):
            yield spec
            client.ended(spec.id, now, True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Build charts without checking every part against the schema: twice as fast; the tests check the same charts."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield


def _load_key(resolved: Resolved, block: int) -> str:
    """Return what the curve of a load depends on: its settings and seed, and which state of which file."""
    import os

    from kvsim.config.resolve import digest_of

    trace = resolved.data.get("workload", {}).get("trace")
    state = os.stat(trace) if trace and os.path.exists(trace) else None
    file = (state.st_mtime_ns, state.st_size) if state else None
    parts = [resolved.data.get(key) for key in ("workload", "clients")]
    return digest_of([*parts, resolved.scenario.run.seed, file, block])


#: The curves of the last loads: moving a slider of memory does not change them.
_CURVES: dict[str, Curve] = {}


def hit_curve_figure(answer: Answer, block: int = 64) -> Figure | None:
    """Return the hit rate of every cache size for the answer's load, in one pass without simulating; None with a problem."""
    from kvsim.measure.curve import hit_curve
    from kvsim.measure.references import references
    from kvsim.report.curve_figure import curve_figure

    if answer.resolved is None or answer.problem:
        return None
    key = _load_key(answer.resolved, block)
    if key not in _CURVES:
        try:
            found = hit_curve(references(specs_of(answer.resolved), block, 1.0))
        except KvsimError:
            return None  # the simulation says what is wrong with the load
        while len(_CURVES) >= 4:
            _CURVES.pop(next(iter(_CURVES)))
        _CURVES[key] = found
    with unchecked():
        return curve_figure(_CURVES[key], answer.resolved.capacity)


def ratio_curve(
    choice: Choice, ratios: tuple[float, ...] = (0, 1, 2, 4, 8), progress: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """Return what each ratio gives: hit rate, TTFT p99, host RAM; ``infeasible`` with the reason where it cannot be."""
    rows = []
    for ratio in ratios:
        answer = simulate_answer(resolve_choice(replace(choice, ratio=ratio, ram_gb=0.0)), progress)
        row: dict[str, Any] = {"ratio": ratio, "infeasible": answer.problem}
        if answer.resolved is not None:
            row["ram_gb"] = answer.resolved.capacity.host_bytes_total / 1e9
        if answer.summary:
            row["hit_percent"] = 100 * (answer.summary["hits"]["hit_rate"] or 0.0)
            row["ttft_p99_s"] = (answer.summary["ttft_s"] or {}).get("p99")
        rows.append(row)
    return rows


def ratio_figure(rows: list[dict[str, Any]]) -> Figure:
    """Return hit rate and TTFT p99 against the ratio; points that cannot be are marked as such and never drawn as
    values.
    """
    from kvsim.report.style import BLUE, PURPLE, RED, DataTable, Figure, altair, finish, number, rows_of

    alt = altair()
    fine = [row for row in rows if "hit_percent" in row]
    base = alt.Chart(rows_of(fine)).encode(x=alt.X("ratio:Q", title="hicache ratio (host tier / device pool)"))
    hit = base.mark_line(point=True, color=BLUE).encode(y=alt.Y("hit_percent:Q", title="hit rate (%)", scale=alt.Scale(domain=[0, 100])))
    ttft = base.mark_line(point=True, color=PURPLE, strokeDash=[6, 3]).encode(y=alt.Y("ttft_p99_s:Q", title="TTFT p99 (s)"))
    layers = [hit, ttft]
    bad = [{"ratio": row["ratio"], "why": row["infeasible"]} for row in rows if row["infeasible"]]
    if bad:
        layers.append(
            alt.Chart(rows_of(bad)).mark_point(shape="cross", color=RED, size=120).encode(x="ratio:Q", y=alt.value(10), tooltip=["why:N"])
        )
    chart = finish(alt.layer(*layers).resolve_scale(y="independent"), description="Hit rate and TTFT against the ratio")
    table = DataTable(
        ("ratio", "host RAM (GB)", "hit rate (%)", "TTFT p99 (s)", "feasible"),
        tuple(
            (
                f"{row['ratio']:g}",
                number(row.get("ram_gb"), 4),
                number(row.get("hit_percent"), 4),
                number(row.get("ttft_p99_s"), 3),
                row["infeasible"] or "yes",
            )
            for row in rows
        ),
    )
    return Figure(
        "ratio",
        "What the ratio buys",
        "Solid: hit rate. Dashed: TTFT p99. A cross marks a ratio that does not fit.",
        chart,
        table,
    )


def save_trace(folder: str, name: str, content: bytes) -> str:
    """Write an uploaded trace into a folder under a harmless name and return its path."""
    from pathlib import Path

    if len(content) > 200_000_000:
        raise ConfigError("the file is larger than 200 MB: use `kvsim replay` for it")
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in Path(name).name).lstrip(".") or "trace"
    path = Path(folder) / safe
    path.write_bytes(content)
    return str(path)


def launch_command(answer: Answer) -> str:
    """Return the launch command of the server that was simulated, or an empty string with a problem."""
    from kvsim.config.command import as_command

    if answer.resolved is None:
        return ""
    return as_command(answer.resolved.scenario.engine.model_dump(exclude_unset=True), answer.resolved.model.name)


def downloads(answer: Answer) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Return what can be taken home: label -> (file name, content when asked for)."""
    if answer.resolved is None:
        return {}
    resolved, recording, summary = answer.resolved, answer.recording, answer.summary

    def scenario() -> bytes:
        from kvsim.report.html import as_yaml

        return as_yaml(resolved.data).encode()

    def report() -> bytes:
        from kvsim.report.html import render, run_page

        assert recording is not None
        return render(run_page(recording, summary, resolved)).encode()

    out = {"scenario": ("scenario.yaml", scenario), "launch command": ("launch.sh", lambda: (launch_command(answer) + "\n").encode())}
    if recording is not None:
        out["report"] = ("report.html", report)
    return out
