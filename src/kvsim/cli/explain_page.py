"""What `kvsim explain` prints; no command-line parser in here, so that a plain call of it starts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.cli.common import emit, emit_json, page_width, resolve_scenario


def explain_page(
    scenario: str | None = None,
    *,
    set_: Sequence[str] | None = None,
    hardware: str | None = None,
    model: str | None = None,
    command: str | None = None,
    step: str | None = None,
    log: str | None = None,
    as_command: bool = False,
    json: bool = False,
) -> int:
    """Print the page (or what was asked for in its place); return 1 if the server cannot run."""
    from kvsim.report.explain import explain_data, explain_text

    printed = _printed(log)
    resolved = resolve_scenario(scenario, set_=[*printed, *(set_ or [])], hardware=hardware, model=model, command=command)
    if as_command:
        from kvsim.config.command import as_command as write

        emit(write(resolved.scenario.engine.model_dump(exclude_unset=True), resolved.model.name))
        return 0
    if step is not None:
        return _explain_step(resolved, step, json)
    if json:
        emit_json(explain_data(resolved))
    else:
        emit(explain_text(resolved, page_width()))
    return 1 if resolved.capacity.infeasible else 0


def _printed(log: str | None) -> list[str]:
    if log is None:
        return []
    from kvsim.config.server_log import read_server_log

    return read_server_log(log).overrides()


def _explain_step(resolved: Any, text: str, json: bool) -> int:
    from rich.table import Table

    from kvsim.cli.common import show
    from kvsim.cost.breakdown import breakdown, parse_step
    from kvsim.cost.build import build_step_time
    from kvsim.errors import ConfigError

    time = build_step_time(resolved)
    if not hasattr(time, "gemm_s"):
        raise ConfigError(f"--step: costs of kind {resolved.scenario.costs.kind} have no components; use costs.kind=analytic")
    rows = breakdown(time, parse_step(text))  # type: ignore[arg-type]
    if json:
        from dataclasses import asdict

        emit_json([asdict(row) for row in rows])
        return 0
    table = Table(title=text, pad_edge=False)
    for name in ("component", "ms", "share", "bound by"):
        table.add_column(name, justify="right" if name in ("ms", "share") else "left")
    for row in rows:
        table.add_row(row.component, f"{row.ms:,.3f}", f"{100 * row.share:.1f} %", row.bound)
    show(table)
    return 0
