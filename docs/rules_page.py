"""The page of SGLang's rules: each rule in two lines, its values and source, and which recordings decide it.

``rules_page.txt`` is the text around them. ``rules_decided.json`` says, per version and rule, which recordings no longer
replay when the rule is changed (at most three by name), and why none does where that is so. It was made by changing one
rule at a time and replaying every recording but those of production size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OLD, NEW = "sglang-0.5.9", "sglang-0.5.23"


NUMBERS = {
    "load_back_threshold": "load-backs of fewer tokens are refused (10). *hiradix_cache.py: load_back_threshold*",
    "clip_max_new_tokens": "estimates of output are clipped to this (4096; toy worlds: 0). *schedule_policy.py: CLIP_MAX_NEW_TOKENS*",
    "retract_decode_steps": "room made at a retraction, per request left; part of the new ratio (20). *SGLANG_RETRACT_DECODE_STEPS*",
    "init_new_token_ratio": "share of the rest of the output that running requests reserve at first (0.7). *SGLANG_INIT_NEW_TOKEN_RATIO*",
    "min_new_token_ratio_factor": "its floor as a share of the first value (0.14). *SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR*",
    "new_token_ratio_decay_steps": "decode steps from the first value to the floor (600). *SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS*",
    "lpm_fallback_length": "lpm leaves queues longer than this as they are (128). *schedule_policy.py: SchedulePolicy*",
    "IN_BATCH_CHECK": "in-batch rule: requests that match at most so many device tokens are checked (32). *schedule_policy.py*",
    "IN_BATCH_FLAG": "in-batch rule: requests that match at least so many tokens of another waiting one go last (32). *schedule_policy.py*",
    "REFRESH_DEPTH": "how many waiting prefixes a refresh touches (128; here changed to 64). *schedule_policy.py: _touch_waiting_prefixes*",
}


def page() -> str:
    """Return the page."""
    from kvsim import rules

    decided = json.loads((HERE / "rules_decided.json").read_text("utf-8"))
    newer = {rule.name: rule for rule in rules.describe(NEW)}
    entries = [entry(rule, newer[rule.name], decided) for rule in rules.describe(OLD)]
    at = next(i for i, rule in enumerate(rules.describe(OLD)) if rule.name == "poll_every_iteration")
    numbers = [f"- **`{name}`**: {text}\n{by(name, decided)}" for name, text in NUMBERS.items()]
    text = (HERE / "rules_page.txt").read_text("utf-8")
    for mark, lines in (("cache", entries[:at]), ("scheduler", entries[at:]), ("numbers", numbers)):
        text = text.replace(f"@{mark}@", "\n".join(lines))
    return text


def entry(old: Any, new: Any, decided: dict[str, Any]) -> str:
    """Return one rule in two lines."""
    a, b = word(old.value), word(new.value)
    values = f"both: {a}" if a == b else f"0.5.9: {a}; 0.5.23: {b}"
    return f"- **`{old.name}`** ({values}): {old.words}. *{old.source}*\n{by(old.name, decided)}"


def word(value: object) -> str:
    """Return a rule's value in a word."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def by(name: str, decided: dict[str, Any]) -> str:
    """Return the line that says which recordings decide a rule."""
    return f"  Decided by: 0.5.9 {deciders(decided[OLD][name])}; 0.5.23 {deciders(decided[NEW][name])}."


def deciders(found: dict[str, Any]) -> str:
    """Return the recordings that decide a rule under one version, or why none does."""
    if not found["first"]:
        return f"none ({found['why']})" if found.get("why") else "`prod_*` (production size)"
    shown = ", ".join(f"`{name}`" for name in found["first"])
    return shown + (f" and {found['more']} more" if found["more"] else "")
