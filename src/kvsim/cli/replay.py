"""`kvsim replay`: a trace on a machine, without writing a scenario."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvsim.cli.common import Command, Hardware, Json, Model, Set, resolve_scenario


def replay(
    trace: str,
    /,
    *,
    scenario: str | None = None,
    hardware: Hardware = None,
    model: Model = None,
    command: Command = None,
    set_: Set = None,
    format: str | None = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    report: str | None = None,
    misses: bool = False,
    json: Json = False,
) -> int:
    """Replay a trace and print its statistics; exit 1 if the SLO is missed.

    With only hardware and model: SGLang 0.5.9 rules, tensor parallel over all GPUs, memory figures of the bundled scenario
    of that pair, HiCache off unless set.

    Parameters
    ----------
    trace
        A trace or log in any format `kvsim trace info` reads.
    scenario
        A scenario whose machine and engine to use in place of --hardware and --model.
    format
        The trace's format, if detection should not decide.
    output
        Write the run directory.
    report
        Write a self-contained HTML report.
    misses
        Say why prompt tokens missed the cache.
    """
    from kvsim.cli.outcome import finish_run

    overrides = [f"workload.trace={trace}", *([f"workload.format={format}"] if format else []), *(set_ or [])]
    resolved = resolve_scenario(scenario, set_=overrides, hardware=hardware, model=model, command=command)
    return finish_run(resolved, output=output, report=report, misses=misses, json=json)
