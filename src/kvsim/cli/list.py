"""`kvsim list`: what is bundled and registered."""

from __future__ import annotations

import textwrap
from typing import Any

from kvsim.cli.common import Json, emit, emit_json, page_width
from kvsim.errors import UnknownName


def list_(what: str | None = None, /, *, diff: tuple[str, str] | None = None, json: Json = False) -> int:
    """List bundled names and registered policies.

    Parameters
    ----------
    what
        hardware, cards, models, scenarios, workloads, policies or rules (all, if absent).
    diff
        With `rules`: two rule sets; print their differences in words.
    """
    if diff is not None:
        from kvsim.rules import describe_difference

        found = describe_difference(*diff)
        if json:
            from dataclasses import asdict

            emit_json([asdict(item) for item in found])
        else:
            emit("\n".join(_difference(item, diff, page_width()) for item in found) or "no difference")
        return 0
    tables = _tables()
    if what is not None and what not in tables:
        raise UnknownName("list", what, tables)
    chosen = {what: tables[what]} if what is not None else tables
    if json:
        emit_json(chosen)
    else:
        lines = (textwrap.wrap(f"{name}: {', '.join(values)}", 80, subsequent_indent="  ") for name, values in chosen.items())
        emit("\n".join(line for part in lines for line in part))
    return 0


def _difference(item: Any, diff: tuple[str, str], width: int) -> str:
    """Return one difference of two rule sets, wrapped."""
    parts = [
        (f"- {item.words}", "  "),
        *((f"    {name}: {value}", "        ") for name, value in zip(diff, (item.left, item.right), strict=True)),
        (f"    ({item.source})", "     "),
    ]
    return "\n".join(textwrap.fill(text, width, subsequent_indent=indent) for text, indent in parts)


def _tables() -> dict[str, list[str]]:
    from kvsim import bundled
    from kvsim.config.hardware import card_names
    from kvsim.kv.eviction import ORDERS as EVICTIONS
    from kvsim.rules import names
    from kvsim.serving.sglang.order import ORDERS

    return {
        "scenarios": bundled.names("experiments"),
        "hardware": bundled.names("hardware"),
        "cards": card_names(),
        "models": bundled.names("models"),
        "workloads": bundled.names("workloads"),
        "rules": list(names()),
        "queue policies": sorted(ORDERS),
        "eviction policies": sorted(EVICTIONS),
        "write policies": ["write_through", "write_through_selective", "write_back"],
    }
