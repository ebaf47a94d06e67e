"""Types of scenario values: numbers with units, strict about everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kvsim import units


class Block(BaseModel):
    """A block of a scenario: unknown keys are errors, values are checked, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, protected_namespaces=(), arbitrary_types_allowed=True)


def _parsed(parse: Callable[[object], Any]) -> BeforeValidator:
    def check(value: object) -> object:
        return None if value is None else parse(value)

    return BeforeValidator(check)


def _text(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"must be text, YAML reads it as {str(value).lower()}: put it in quotes")
    return value


Bytes = Annotated[int, _parsed(units.parse_bytes), Field(ge=0, json_schema_extra={"description": "bytes, or text like 512GiB"})]
Rate = Annotated[float, _parsed(units.parse_rate), Field(ge=1, json_schema_extra={"description": "B/s from 1, or text like 64GB/s"})]
Seconds = Annotated[float, _parsed(units.parse_seconds), Field(json_schema_extra={"description": "seconds, or text like 20us"})]
Count = Annotated[int, _parsed(units.parse_count), Field(le=10**15, json_schema_extra={"description": "a whole number, or text like 8k"})]
#: Not limited like a count: seeds of replications are derived, and use 56 bits.
Seed = Annotated[int, _parsed(units.parse_count), Field(ge=0, lt=2**64, json_schema_extra={"description": "a whole number"})]
Number = Annotated[float, _parsed(units.parse_number)]
Name = Annotated[str, BeforeValidator(_text)]
PositiveCount = Annotated[Count, Field(gt=0)]
#: How many of something a recipe makes one by one.
Many = Annotated[Count, Field(ge=1, le=10_000_000)]
PositiveNumber = Annotated[Number, Field(gt=0)]
PositiveSeconds = Annotated[Seconds, Field(gt=0)]
NotNegativeSeconds = Annotated[Seconds, Field(ge=0)]
Share = Annotated[Number, Field(gt=0, le=1)]
