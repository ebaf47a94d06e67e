"""`kvsim schema`: the JSON Schema of a scenario."""

from __future__ import annotations

from kvsim.cli.common import emit_json


def schema() -> int:
    """Print the JSON Schema of a scenario (for editors and for checks)."""
    from kvsim.config.schema import Scenario

    emit_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema()})
    return 0
