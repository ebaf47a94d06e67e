"""What the commands over studies share: the scenario as an object, and how an interruption ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvsim.cli.common import note


def scenario_of(scenario: str | None, set_: list[str] | None, hardware: str | None, model: str | None, command: str | None) -> Any:
    """Return the scenario a command was given. Raises ConfigError."""
    from kvsim.config.load import load, load_parts
    from kvsim.errors import ConfigError

    if scenario is not None and (hardware is not None or model is not None or command is not None):
        raise ConfigError("give either a scenario or --hardware/--model/--command, not both")
    if scenario is not None:
        return load(scenario, set_ or [])
    if hardware is None or model is None:
        raise ConfigError("give a scenario (a file or a bundled name), or both --hardware and --model")
    return load_parts(hardware, model, command, set_ or [])


@contextmanager
def interrupted(output: str | None) -> Iterator[None]:
    """Say how to go on when the user stops a study."""
    try:
        yield
    except KeyboardInterrupt:
        if output:
            note(f"\nstopped; what is finished is kept in {output}: the same command goes on from there")
        else:
            note("\nstopped; nothing is kept (give -o FOLDER to be able to go on)")
        raise
