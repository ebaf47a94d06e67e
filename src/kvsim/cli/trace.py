"""`kvsim trace`: inspect, convert, generate and anonymise traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from kvsim.cli.common import Json, Progress, emit, emit_json, emit_wrapped, note, show
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from kvsim.workload.info import TraceInfo
    from kvsim.workload.read import TraceReader
    from kvsim.workload.spec import RequestSpec

app = App(name="trace", help="Inspect, convert, generate, fit or anonymise traces.")

COLUMN_NAMES = ("time", "input", "output", "session", "id", "cached", "end", "tenant", "namespace")
MOST_BLOCKS = 1_000_000  # for reuse by size, which is worked out in memory
Columns = Annotated[str | None, Parameter(help="Columns of a plain CSV: time=...,input=...,output=... (and session, id, cached, end, tenant, namespace).")]
TraceFile = Annotated[str, Parameter(allow_leading_hyphen=True)]  # for "-", standard input
Output = Annotated[str | None, Parameter(name=["--output", "-o"])]


@app.command
def info(
    trace: TraceFile, /, *, format: str | None = None, block_size: int | None = None, limit: int | None = None, start: float | None = None,
    end: float | None = None, rate_scale: float | None = None, sample_sessions: float | None = None, time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    columns: Columns = None, json: Json = False,
) -> int:  # fmt: skip
    """Say what a trace is: format, span, requests, tokens, rate over time, reuse by cache size, skipped rows, what is missing.

    Parameters
    ----------
    trace
        A file, a folder of shards, or - for standard input; gzip and zstd are read as they are.
    format
        The format, if detection should not decide.
    block_size
        Tokens per block id, where the file does not say.
    limit
        Read at most so many requests.
    start
        Leave out what comes before this many seconds.
    end
        Leave out what comes from this many seconds on.
    rate_scale
        Multiply the rate: times are divided by this.
    sample_sessions
        Keep only this share of the sessions, always the same ones.
    time_unit
        The unit of the times, where the file does not say.
    """
    from kvsim.workload.info import inspect
    from kvsim.workload.read import open_trace

    options = {
        "block_size": block_size, "limit": limit, "start": start, "end": end, "rate_scale": _positive("--rate-scale", rate_scale),
        "sample_sessions": _share(sample_sessions), "time_unit": time_unit, "columns": column_map(columns),
    }  # fmt: skip
    reader = open_trace(trace, format, **options)
    with watched(reader):
        found = inspect(reader)
    reuse = _reuse_of(reader, found, options)
    if json:
        emit_json({**found.data(), "reuse_by_capacity": reuse})
    else:
        _print(found, reuse)
    return 0


@contextmanager
def watched(reader: TraceReader) -> Iterator[TraceReader]:
    """Show on stderr how far a reader is: rows, and the share of the file's bytes."""
    bar = Progress("reading", None)
    reader.watch = bar
    try:
        yield reader
    finally:
        bar.close()


def _positive(name: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < 1e12:
        raise ConfigError(f"{name} is {value:g}; must be above 0")
    return value


def _share(value: float | None) -> float | None:
    if value is not None and not 0 < value <= 1:
        raise ConfigError(f"--sample-sessions is {value:g}; must be above 0 and up to 1")
    return value


def column_map(text: str | None) -> dict[str, str] | None:
    """Return the column map of "time=Timestamp,input=Prompt,output=Answer". Raises ConfigError."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    wrong = [
        name
        for name, mark, column in pairs
        if not mark or not column or name.strip() not in COLUMN_NAMES
    ]
    if wrong:
        raise ConfigError(f"--columns: '{wrong[0]}'; expected name=column with names {', '.join(COLUMN_NAMES)}")
    return {name.strip(): column.strip() for name, _, column in pairs}


def _reuse_of(reader: TraceReader, found: TraceInfo, options: dict[str, Any]) -> list[dict[str, float]]:
    """Return the LRU hit rate by capacity, from a second reading: exact, of a sample of conversations, or not at all; a note says which."""
    from kvsim.workload.read import CONTENT, open_trace

    if found.ceiling is None:
        return []
    if reader.path == "-":
        found.notes.append("standard input is read once only: reuse by size is left out")
        return []
    share = MOST_BLOCKS * reader.block / found.prompt_tokens
    if share >= 1:
        return _reuse(open_trace(reader.path, reader.format, **options))
    if found.content != CONTENT["session"]:
        found.notes.append(f"more than {MOST_BLOCKS:,} blocks: reuse by size is left out (`kvsim curve` has it, in memory that grows with them)")
        return []
    share *= options.get("sample_sessions") or 1.0
    found.notes.append(f"reuse by size is from {100 * share:.2g} % of the conversations, sizes scaled up (they share nothing, so a sample is like the whole)")
    return _reuse(open_trace(reader.path, reader.format, **{**options, "sample_sessions": share}), share / (options.get("sample_sessions") or 1.0))


def _reuse(reader: TraceReader, share: float = 1.0) -> list[dict[str, float]]:
    """Return the LRU hit rate (whole blocks of the trace) at fractions of the capacity that reaches 99 % of the ceiling."""
    from kvsim.measure.curve import hit_curve
    from kvsim.measure.references import references

    curve = hit_curve(references(reader, reader.block))
    working_set = curve.working_set()
    sizes = dict.fromkeys(working_set // part for part in (64, 16, 8, 4, 2, 1))
    return [{"capacity_tokens": round(size / share), "hit_rate": curve.rate(size)} for size in sizes if size]


def _print(found: TraceInfo, reuse: list[dict[str, float]]) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("format", f"{found.format} ({found.sure}: {found.because})")
    table.add_row(
        "requests",
        f"{found.requests:,} in {found.span_s:,.3f} s" + (f", {found.requests / found.span_s:.3g} per second" if found.span_s else ""),
    )
    table.add_row("tokens", f"{found.prompt_tokens:,} prompt, {found.output_tokens:,} output; longest prompt {found.longest_prompt:,}")
    table.add_row("times", found.unit)
    table.add_row("sessions", f"{found.sessions:,}" if found.sessions else "none in the file")
    table.add_row("content", found.content)
    if found.ceiling is not None:
        table.add_row(
            "reuse ceiling", f"{100 * found.ceiling:.2f} % of prompt tokens with an unlimited cache (page 1, the last token never hits)"
        )
    if found.recorded_hit_rate is not None:
        table.add_row("recorded hits", f"{100 * found.recorded_hit_rate:.2f} % of prompt tokens were cached when the log was written")
    if reuse:
        text = ", ".join(f"{100 * row['hit_rate']:.1f} % with {row['capacity_tokens']:,}" for row in reuse)
        table.add_row("reuse by size", f"{text} tokens (LRU, whole blocks; `kvsim curve` has all sizes)")
    if found.rates_per_s:
        table.add_row("rate over time", " ".join(f"{rate:.3g}" for rate in found.rates_per_s) + " requests/s in tenths of the span")
    for reason, (count, lines) in found.skipped.items():
        table.add_row("skipped", f"{count:,}: {reason} (lines {', '.join(map(str, lines))}{', ...' if count > len(lines) else ''})")
    for text in found.notes:
        table.add_row("note", text)
    show(table)


@app.command
def convert(
    trace: TraceFile,
    /,
    *,
    to: str = "kvsim",
    output: Output = None,
    format: str | None = None,
    block_size: int | None = None,
    limit: int | None = None,
    start: float | None = None,
    end: float | None = None,
    rate_scale: float | None = None,
    sample_sessions: float | None = None,
    columns: Columns = None,
) -> int:
    """Convert a trace to another format and say what is lost.

    Parameters
    ----------
    to
        kvsim (canonical JSONL), mooncake, csv, azure, burstgpt, bailian, aiperf, sglang_metrics, sglang_bench, vllm_bench, dynamo, weka, otel,
        sharegpt, litellm, langfuse or access_log.
    output
        The file to write; standard output if absent.
    limit
        Read at most so many requests.
    start
        Leave out what comes before this many seconds.
    end
        Leave out what comes from this many seconds on.
    rate_scale
        Multiply the rate: times are divided by this.
    sample_sessions
        Keep only this share of the sessions, always the same ones.
    """
    from kvsim.workload.read import BLOCKS, open_trace
    from kvsim.workload.write import LOST, lines_for

    reader = open_trace(
        trace, format, block_size=block_size, limit=limit, start=start, end=end, rate_scale=_positive("--rate-scale", rate_scale),
        sample_sessions=_share(sample_sessions), columns=column_map(columns),
    )  # fmt: skip
    lines = lines_for(reader, to, block_size or BLOCKS.get(to, reader.block), made_up=reader.format != "kvsim")
    with watched(reader):
        count = _write(lines, output)
    note(f"{count:,} lines from {reader.format} to {to}; lost: {LOST[to]}")
    return 0


@app.command
def anonymise(
    trace: TraceFile,
    /,
    *,
    output: Output = None,
    page_size: int = 16,
    salt: str | None = None,
    format: str | None = None,
    block_size: int | None = None,
    columns: Columns = None,
) -> int:
    """Replace content by salted, chained page hashes; lengths and reuse stay exactly the same, no text or name survives.

    Parameters
    ----------
    page_size
        Tokens per hash.
    salt
        A secret that makes two files of one anonymisation comparable; random if absent (and not kept).
    """
    from kvsim.workload.read import open_trace
    from kvsim.workload.write import anonymised

    reader = open_trace(trace, format, block_size=block_size, columns=column_map(columns))
    with watched(reader):
        count = _write(anonymised(reader, page_size, salt.encode() if salt else None), output)
    note(f"{count:,} requests anonymised; read the result with --block-size {page_size}")
    return 0


@app.command
def generate(recipe: str, /, *, output: Output = None, seed: int = 1, to: str = "kvsim", json: Json = False) -> int:
    """Write a trace from a recipe: a bundled workload's name, a scenario or workload file, or an inline mapping like "{kind: poisson, rate_per_s: 1}".

    Parameters
    ----------
    recipe
        What to generate (`kvsim list workloads`).
    seed
        Equal seeds give equal traces.
    """
    del json
    from kvsim.workload.read import BLOCKS
    from kvsim.workload.write import LOST, lines_for

    count = _write(lines_for(_generated(recipe, seed), to, BLOCKS.get(to, 512)), output)
    note(f"{count:,} lines; format {to}, lost: {LOST[to]}")
    return 0


def _generated(recipe: str, seed: int) -> Iterator[RequestSpec]:

    from kvsim import bundled
    from kvsim.config.load import load_data
    from kvsim.config.schema.workload import Clients
    from kvsim.config.yamlfile import parse_scalar, parse_yaml, read_text
    from kvsim.workload.build import build_client

    if recipe.strip().startswith("{"):
        data: Any = parse_scalar(recipe)
    else:
        path = bundled.find("workloads", recipe, "workload")
        data, _ = parse_yaml(read_text(path, "workload"), str(path))
        data = data.get("workload", data)
    scenario = load_data(
        {"hardware": "8x-rtx-pro-6000", "model": "llama-3.1-8b", "workload": data}, (), recipe if len(recipe) < 60 else "recipe"
    )
    client = build_client(scenario.workload, seed=seed, clients=Clients())
    return _open_loop(client)


def _open_loop(client: Any) -> Iterator[RequestSpec]:
    """Yield what a client sends if every answer came at once."""
    while (when := client.next_send()) is not None:
        for spec in client.send(when):
            yield spec
            client.ended(spec.id, when, True)


@app.command
def fit(
    trace: TraceFile, /, *, format: str | None = None, block_size: int | None = None, columns: Columns = None, seed: int = 1, json: Json = False
) -> int:
    """Fit a recipe to a trace and show how well it does: lengths, arrivals and reuse side by side.

    Parameters
    ----------
    seed
        Seed of the comparison's own draw.
    """
    from kvsim.workload.fit import fit_recipe

    found = fit_recipe(trace, format=format, block_size=block_size, seed=seed, reuse=_rates, columns=column_map(columns))
    if json:
        emit_json(found.data())
    else:
        emit_wrapped(found.text(), indent="")
    return 0


def _rates(specs: list[RequestSpec], capacities: list[int]) -> list[tuple[int, float]]:
    """Return (capacity, LRU hit rate) of requests in blocks of 512 tokens; without capacities at fractions of the working set."""
    from kvsim.measure.curve import hit_curve
    from kvsim.measure.references import references

    curve = hit_curve(references(specs, 512))
    sizes = capacities or [size for part in (64, 32, 16, 8, 4, 2, 1) if (size := curve.working_set() // part)]
    return [(size, curve.rate(size)) for size in sizes]


def _write(lines: Iterable[str], output: str | None) -> int:
    from kvsim.workload.write import write_lines

    if output is not None:
        return write_lines(lines, output)
    count = 0
    for line in lines:
        emit(line)
        count += 1
    return count
