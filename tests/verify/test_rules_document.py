"""docs/reference/rules.md names every rule with its values, and where it is decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim import rules


def word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("rule", rules.describe("sglang-0.5.9"), ids=lambda rule: rule.name)
def test_the_document_has_two_lines_for_each_rule(root: Path, rule: rules.Rule) -> None:
    lines = (root / "docs" / "reference" / "rules.md").read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"- **`{rule.name}`**"))
    newer = next(r for r in rules.describe("sglang-0.5.23") if r.name == rule.name)
    values = [word(rule.value), word(newer.value)]
    shown = f"both: {values[0]}" if values[0] == values[1] else f"0.5.9: {values[0]}; 0.5.23: {values[1]}"
    assert f"({shown}): {rule.words}" in lines[at]
    assert rule.source in lines[at]
    assert lines[at + 1].startswith("  Decided by: 0.5.9 ")
    assert "; 0.5.23 " in lines[at + 1]
