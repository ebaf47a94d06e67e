"""Which engine family an engine block belongs to: its rule set decides (``engine`` is a union tagged by that)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from kvsim.config.schema.engine import SglangEngine
from kvsim.config.schema.engine_vllm import VllmEngine
from kvsim.config.schema.types import Block

#: Family -> its engine block. A third engine is one more entry here and in ``Engine``.
FAMILIES: dict[str, type[Block]] = {"sglang": SglangEngine, "vllm": VllmEngine}


def family_of(engine: Any) -> str:
    """Return the family of an engine block (plain data or validated) by the beginning of its rule set's name."""
    rules = engine.get("rules") if isinstance(engine, dict) else getattr(engine, "rules", None)
    name = rules.get("base") if isinstance(rules, dict) else rules
    for family in FAMILIES:
        if isinstance(name, str) and name.startswith(family):
            return family
    return "sglang"


def family_with_key(key: str, other_than: str) -> str | None:
    """Return another family whose engine block has ``key``, or None."""
    return next((family for family, block in FAMILIES.items() if family != other_than and key in block.model_fields), None)


Blocks = Annotated[SglangEngine, Tag("sglang")] | Annotated[VllmEngine, Tag("vllm")]
Engine = Annotated[Blocks, Discriminator(family_of)]
