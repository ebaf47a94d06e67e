"""`kvsim explain`: where the memory went, before any simulation."""

from __future__ import annotations

from kvsim.cli.common import Command, Hardware, Json, Model, Set


def explain(
    scenario: str | None = None,
    /,
    *,
    set_: Set = None,
    hardware: Hardware = None,
    model: Model = None,
    command: Command = None,
    step: str | None = None,
    log: str | None = None,
    as_command: bool = False,
    json: Json = False,
) -> int:
    """Show where the memory went: the arithmetic of a server, instantly; exit 1 if it cannot run.

    Parameters
    ----------
    scenario
        A scenario file or a bundled name (`kvsim list scenarios`).
    step
        Show where the time of one step goes: "prefill=8192 cached=100k decode=32x16k".
    log
        A server's log: what the engine printed wins over the derivation.
    as_command
        Write the engine block back as a launch command.
    """
    from kvsim.cli.explain_page import explain_page

    return explain_page(scenario, set_=set_, hardware=hardware, model=model, command=command, step=step, log=log, as_command=as_command, json=json)
