"""Single-rule mutations of the engine rules: a rule flipped, a number moved, one expression of one function changed."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvsim.kv import eviction
from kvsim.kv.tiers import Tiers
from kvsim.rules.sglang import SglangParams, SglangRules
from kvsim.serving.sglang import order, scheduler
from kvsim.serving.sglang.admission import Admission
from kvsim.serving.sglang.cohort import Cohort
from kvsim.serving.sglang.decode import Decoding
from kvsim.serving.sglang.order import Ordering
from kvsim.serving.sglang.scheduler import SglangScheduler
from kvsim.verify import cache_replay, sched_replay

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch, SglangRules], SglangRules]


def rule_changes(rules: SglangRules) -> Iterator[tuple[str, Mutation]]:
    """Every rule of a set changed to each other value it could sensibly have."""
    for field in dataclasses.fields(rules):
        value = getattr(rules, field.name)
        if field.name == "name":
            continue
        if isinstance(value, bool):
            others: list[Any] = [not value]
        elif isinstance(value, int):
            others = [value + 1] + ([value - 1] if value else [])
        else:
            others = [choice for choice in field.metadata["choices"] if choice != value]
        for other in others:
            yield f"{field.name}={other}", _with_rule(field.name, other)


def _with_rule(name: str, value: Any) -> Mutation:
    return lambda patch, rules: dataclasses.replace(rules, **{name: value})


def setting(name: str, value: Any) -> tuple[str, Mutation]:
    """A number of the engine that no recording states (a default of the server) moved."""

    def mutate(patch: Patch, rules: SglangRules) -> SglangRules:
        for module in (cache_replay, sched_replay):
            original = module.params_of

            def moved(meta: dict[str, Any], own: SglangRules | None = None, original: Any = original) -> SglangParams:
                return dataclasses.replace(original(meta, own), **{name: value})

            patch.setattr(module, "params_of", moved)
        return rules

    return f"{name}={value}", mutate


def text(label: str, owner: Any, function: str, old: str, new: str) -> tuple[str, Mutation]:
    """One expression of one function changed; ``old`` must occur in its source."""

    def mutate(patch: Patch, rules: SglangRules) -> SglangRules:
        raw = inspect.getattr_static(owner, function)
        kind = type(raw) if isinstance(raw, staticmethod | property) else None
        plain = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
        source = textwrap.dedent(inspect.getsource(plain))
        assert old in source, f"{function} no longer contains {old!r}: bring this mutation up to date"
        lines = source.replace(old, new).split("\n")
        while lines[0].startswith("@"):
            lines.pop(0)
        names: dict[str, Any] = {}
        code = "from __future__ import annotations\n" + "\n".join(lines)
        exec(compile(code, f"<{label}>", "exec"), plain.__globals__, names)
        changed = names[function]
        patch.setattr(owner, function, kind(changed) if kind else changed)
        if owner is order and function in (name.replace("-", "_") for name in order.ORDERS):
            patch.setitem(order.ORDERS, function.replace("_", "-"), changed)
        return rules

    return label, mutate


def constant(name: str, value: int) -> tuple[str, Mutation]:
    """A constant of the queue order moved."""

    def mutate(patch: Patch, rules: SglangRules) -> SglangRules:
        patch.setattr(order, name, value)
        return rules

    return f"{name}={value}", mutate


def eviction_order(name: str, other: str) -> tuple[str, Mutation]:
    """One eviction order behaves like another."""

    def mutate(patch: Patch, rules: SglangRules) -> SglangRules:
        patch.setitem(eviction.ORDERS, name, eviction.ORDERS[other])
        return rules

    return f"{name} evicts as {other}", mutate


SETTINGS = [
    setting("load_back_threshold", 9),
    setting("load_back_threshold", 11),
    setting("clip_max_new_tokens", 4095),
    setting("clip_max_new_tokens", 4097),
    setting("retract_decode_steps", 19),
    setting("retract_decode_steps", 21),
    setting("init_new_token_ratio", 0.69),
    setting("min_new_token_ratio_factor", 0.15),
    setting("new_token_ratio_decay_steps", 599),
    setting("lpm_fallback_length", 127),
    setting("lpm_fallback_length", 129),
    constant("IN_BATCH_CHECK", 31),
    constant("IN_BATCH_CHECK", 33),
    constant("IN_BATCH_FLAG", 31),
    constant("IN_BATCH_FLAG", 33),
    constant("REFRESH_DEPTH", 64),
    eviction_order("lru", "fifo"),
    eviction_order("lru", "mru"),
    eviction_order("lfu", "lru"),
    eviction_order("slru", "lru"),
    eviction_order("fifo", "lru"),
    eviction_order("filo", "mru"),
    eviction_order("priority", "lru"),
]

LOAD_FIRST = "_add_load_first"
ADMISSION = [
    text(
        "0.5.9: token test passes at equality",
        Admission,
        LOAD_FIRST,
        "needed >= self.rem_total",
        "needed > self.rem_total",
    ),
    text(
        "0.5.9: host hits need no device room",
        Admission,
        LOAD_FIRST,
        "needed = extend + ",
        "needed = extend - match.host + ",
    ),
    text("0.5.9: prefill test passes at equality", Admission, LOAD_FIRST, ">= self.rem_input", "> self.rem_input"),
    text(
        "0.5.9: second prefill test left out",
        Admission,
        LOAD_FIRST,
        "if self.admitted and self._pages(extend) >=",
        "if False and self._pages(extend) >=",
    ),
    text(
        "0.5.9: chunk test on raw tokens",
        Admission,
        LOAD_FIRST,
        "self._pages(extend) <= self.rem_chunk",
        "extend <= self.rem_chunk",
    ),
    text(
        "0.5.9: admission charges mnt minus outputs",
        Admission,
        LOAD_FIRST,
        "extend, min(request.mnt, self.clip)",
        "extend, self._new_tokens(request)",
    ),
    text("0.5.9: first chunk reserves output", Admission, LOAD_FIRST, "cut, 0)", "cut, self._new_tokens(request))"),
    text("0.5.9: a chunk of no page is taken", Admission, LOAD_FIRST, "cut <= 0", "cut < -self.page"),
    text("0.5.23: token test passes at equality", Admission, "_shape", ">= self.rem_total", "> self.rem_total"),
    text(
        "0.5.23: host hits need no device room",
        Admission,
        "_shape",
        "total - match.device +",
        "total - match.device - host +",
    ),
    text(
        "0.5.23: chunk test on raw tokens",
        Admission,
        "_shape",
        "self._pages(extend) <= self.rem_chunk",
        "extend <= self.rem_chunk",
    ),
    text(
        "0.5.23: admission charges mnt minus outputs",
        Admission,
        "_add_shape_first",
        "min(request.mnt, self.clip) if whole",
        "self._new_tokens(request) if whole",
    ),
    text("0.5.23: first chunk reserves output", Admission, "_add_shape_first", "if whole else 0", ""),
    text(
        "0.5.23: no second shape after a refused load",
        Admission,
        "_add_shape_first",
        "match.host and not loaded",
        "False",
    ),
    text("the last token may be cached too", Admission, "add", "request.kv.total - 1", "request.kv.total"),
    text(
        "newcomers need the full limit again",
        Admission,
        "_new_tokens",
        "request.mnt - request.output_done",
        "request.mnt",
    ),
    text("charges are not rounded to pages", Admission, "_charge", "self._pages(extend)", "extend"),
    text("charges leave the prefill budget alone", Admission, "_charge", "self.rem_input -= rounded", "pass"),
    text("running requests reserve everything", scheduler, "reservations", "* ratio for", "* 1.0 for"),
    text(
        "running requests reserve unclipped",
        scheduler,
        "reservations",
        "min(r.limit_at - decoded, clip) * ratio",
        "(r.limit_at - decoded) * ratio",
    ),
    text(
        "running requests reserve their whole limit",
        scheduler,
        "reservations",
        "r.limit_at - decoded",
        "r.mnt",
    ),
    text(
        "finished requests reserve nothing",
        scheduler,
        "reservations",
        "ratio for r in running",
        "ratio for r in running if not r.finished",
    ),
    text("evictable tokens are no room", Admission, "rem_total", "self.cache.evictable", "0"),
    text("the verdict ignores the prefill budget", Admission, "state", "self.rem_input <= 0 or", ""),
    text("the verdict ignores the chunk budget", Admission, "state", "self.rem_chunk <= 0", "False"),
    text(
        "the verdict ignores the token budget",
        Admission,
        "state",
        "room - self.off_total <= 0 or room - self.off_current <= 0",
        "False",
    ),
    text("the verdict ignores the current budget", Admission, "state", "or room - self.off_current <= 0", ""),
    text(
        "a continued chunk ignores the token budget",
        Admission,
        "add_chunked",
        "min(self.rem_chunk, int(self.rem_total))",
        "self.rem_chunk",
    ),
    text(
        "a continued chunk without room takes one token",
        Admission,
        "add_chunked",
        "room = self.rem_chunk\n    ext",
        "room = 1\n    ext",
    ),
    text("a final chunk reserves no output", Admission, "add_chunked", "if whole else 0", "* 0"),
    text(
        "a final chunk charges mnt minus outputs",
        Admission,
        "add_chunked",
        "min(request.mnt, self.clip)",
        "self._new_tokens(request)",
    ),
    text(
        "a continued chunk ends on a page",
        Admission,
        "add_chunked",
        "extend = min(rest, room)",
        "extend = min(rest, max(room // self.page, 1) * self.page)",
    ),
    text(
        "ignore_eos: pairs in order without the off-by-one",
        Admission,
        "_note_pair",
        "max(len(self._pairs) - 1, 0)",
        "len(self._pairs)",
    ),
    text("ignore_eos: pairs behind equals", Admission, "_note_pair", "other[0] >= pair[0]", "other[0] > pair[0]"),
    text(
        "ignore_eos: no reserve of a token each",
        Admission,
        "_add_ignoring_eos",
        "left * others <= others",
        "left * others <= 0",
    ),
    text("ignore_eos: nothing is freed by finishers", Admission, "_add_ignoring_eos", "freed += occupied", "freed += 0"),
    text(
        "ignore_eos: chunk floored to pages",
        Admission,
        "_add_ignoring_eos",
        "cut = self.rem_chunk",
        "cut = self.rem_chunk // self.page * self.page",
    ),
    text(
        "ignore_eos: ratio for everybody",
        Admission,
        "_pair_of",
        "1.0 if request.spec.ignore_eos else self.ratio",
        "self.ratio",
    ),
]

DECODE = [
    text("retraction: longest prompt stays", Decoding, "_retract", "-r.spec.prompt_tokens", "r.spec.prompt_tokens"),
    text("retraction: most outputs go first", Decoding, "_retract", "(r.output_done, -r", "(-r.output_done, -r"),
    text("retraction: ties by arrival", Decoding, "_retract", "(r.output_done, -r.spec.prompt_tokens)", "r.output_done"),
    text("retraction: only while it does not fit", Decoding, "_retract", "not victims or not", "not"),
    text("retraction: no room made beside", Decoding, "_retract", "self.cache.make_room(", "(lambda *a: None)("),
    text(
        "retraction: room for the retracted one too",
        Decoding,
        "_retract",
        "params.retract_decode_steps * len(batch), now",
        "params.retract_decode_steps * (len(batch) + 1), now",
    ),
    text(
        "retraction: the ratio never falls",
        Decoding,
        "_retract",
        "self.ratio = min(1.0,",
        "self.ratio = max(self.ratio,",
    ),
    text("retraction: ratio without the +1", Decoding, "_retract", "(limit + 1)", "limit"),
    text(
        "retraction: ratio over clipped limits",
        Decoding,
        "_retract",
        "sum(r.mnt for r in batch)",
        "sum(min(r.mnt, params.clip_max_new_tokens) for r in batch)",
    ),
    text(
        "retraction: last one back is first in the queue",
        Decoding,
        "_retract",
        "self._requeue(victims)",
        "self._requeue(victims[::-1])",
    ),
    text(
        "decode: allocation makes no room itself",
        Decoding,
        "_allocate_decode",
        "cache.make_room(cohort.size * cache.page, now)",
        "pass",
    ),
    text("decode: the check makes no room", Decoding, "_decode_fits", "cache.make_room(need, now)", "pass"),
    text("decode: everybody needs a page", Cohort, "pages_now", "self._ring[self.allocated % self.page]", "self.size"),
    text("decode: a page is needed one token late", Cohort, "pages_now", "self.allocated %", "(self.allocated - 1) %"),
    text("decode: fits only with a slot to spare", Decoding, "_decode_fits", ">= need", "> need"),
    text("decode: the ratio does not decay", Decoding, "_plan_decode", "self.ratio - self.ratio_decay", "self.ratio"),
    text("decode: a shrunken batch stays full", Decoding, "_plan_decode", "if len(self.running) < before:", "if False:"),
    text(
        "decode: an emptied batch stays full",
        Decoding,
        "_plan_decode",
        "if not self.running:\n        self.full = False",
        "if not self.running:\n        pass",
    ),
    text("finishing: one token early", Cohort, "at_limit_next", "self.decoded + 1", "self.decoded + 2"),
    text("finishing: EOS is foreseen", Cohort, "join", "request.limit_at - pending", "decoded + request.length - done - pending"),
    text(
        "prefill end: the first token is inserted too",
        Decoding,
        "_first_token",
        "request.extend_end, now",
        "request.extend_end + 1, now",
    ),
    text("prefill end counts as chunked", Decoding, "_first_token", "chunked=False", "chunked=True"),
    text("prefill end inserts nothing", Decoding, "_first_token", "self.cache.checkpoint(", "(lambda *a, **k: None)("),
    text(
        "finish: one token less is offered",
        Decoding,
        "_finish",
        "min(kv.committed, kv.total)",
        "min(kv.committed, kv.total) - 1",
    ),
    text("result: no flush of copies", Decoding, "settle", "self.cache.flush(now)", "pass"),
    text(
        "result: a retracted request still gets its first token",
        Decoding,
        "settle",
        "request.finished or request.retracted or",
        "request.finished or",
    ),
]

SCHEDULER = [
    text(
        "merge: a shrunken batch stays full",
        SglangScheduler,
        "_merge_last",
        "if len(keep) < len(last.batch):",
        "if False:",
    ),
    text(
        "merge: the full flag is kept with a new batch",
        SglangScheduler,
        "_merge_last",
        "self.running, self.full = keep, False",
        "self.running = keep",
    ),
    text("merge: newcomers go to the front", SglangScheduler, "_merge_last", "self.running + keep", "keep + self.running"),
    text("slots: one more", SglangScheduler, "_admit_queue", ">= slots", "> slots"),
    text(
        "slots: the chunked request needs none",
        SglangScheduler,
        "_admit_queue",
        "len(adder.admitted) >= slots",
        "len(adder.admitted) - (adder.hits[:1] == [None]) >= slots",
    ),
    text("OTHER fills the batch", SglangScheduler, "_admit_queue", "verdict == NO_TOKEN", "verdict != CONTINUE"),
    text(
        "a refusal does not end the pass",
        SglangScheduler,
        "_admit_queue",
        "            self._mark_full(adder)\n        return",
        "            self._mark_full(adder)\n        continue",
    ),
    text("a refusal never fills", SglangScheduler, "_mark_full", "self.full = True", "pass"),
    text(
        "prefill makes room for its tokens only",
        SglangScheduler,
        "_make_prefill_room",
        "extend + page * len(admitted)",
        "extend",
    ),
    text("prefill makes no room", SglangScheduler, "_make_prefill_room", "cache.make_room(extend, now)", "pass"),
    text("idle: the ratio is kept", SglangScheduler, "idle", "self.ratio = self.ratio_init", "pass"),
    text(
        "mixed: budgets ignore the riders",
        SglangScheduler,
        "_plan_prefill",
        "len(self.running) if params.mixed_chunk else 0",
        "0",
    ),
    text(
        "mixed: decoders first",
        SglangScheduler,
        "_merge_last",
        "[r for r in last.batch if",
        "[r for r in last.batch[len(last.batch) - last.decoders:] + last.batch[:len(last.batch) - last.decoders] if",
    ),
    text("mixed: the running batch stays", SglangScheduler, "_mix", "self.running = []", "pass"),
    text("polls never", SglangScheduler, "_plan_prefill", "self.cache.poll(now)", "pass"),
    text(
        "polls before it is known whether a pass is made",
        SglangScheduler,
        "_merge_last",
        "last = self.last\n",
        "last = self.last\n    self.cache.poll(self.now)\n",
    ),
    text("a stash is no chunked insert", SglangScheduler, "_stash", "chunked=True", "chunked=False"),
    text(
        "a stash forgets the last page",
        SglangScheduler,
        "_stash",
        "chunked.kv.committed, self.now",
        "chunked.kv.committed - self.cache.page, self.now",
    ),
    text(
        "retracted requests return to the head",
        SglangScheduler,
        "_requeue",
        "self.waiting.append(request)",
        "self.waiting.insert(0, request)",
    ),
    text(
        "loads start one batch late",
        SglangScheduler,
        "_build_prefill",
        "cache.start_loads(now)",
        "cache.start_loads(now + 1)",
    ),
    text(
        "lpm ranks all but the last token",
        order,
        "match_all",
        "cache.match(request.kv, request.kv.total)",
        "cache.match(request.kv, request.kv.total - 1)",
    ),
    text("lpm: flagged requests go first", order, "lpm", 'float("inf")', '-float("inf")'),
    text("lpm: shortest prefix first", order, "lpm", "else -match.device", "else match.device"),
    text("lpm: shortest prefix first (with host)", order, "lpm", "return -min(", "return min("),
    text("lpm: the last token counts", order, "lpm", "request.kv.total - 1", "request.kv.total"),
    text(
        "in-batch rule: copies are entered too",
        order,
        "match_all",
        "            flagged.add(request.seq)",
        "            flagged.add(request.seq)\n            seen.append(tokens)",
    ),
    text("lof: smallest first", order, "lof", "-request.mnt)\n", "request.mnt)\n"),
    text("dfs-weight: lighter first", order, "dfs_weight", "-weight[child]", "weight[child]"),
    text(
        "dfs-weight: own requests first",
        order,
        "dfs_weight",
        "        stack.append((node, True))",
        "        out.extend(at.get(node, ()))\n        at.pop(node, None)\n        stack.append((node, True))",
    ),
    text("refresh: head first", Ordering, "__call__", "reversed(waiting[:REFRESH_DEPTH])", "waiting[:REFRESH_DEPTH]"),
    text("refresh: never", Ordering, "__call__", "self._passes % self._refresh_every == 0", "False"),
    text("whole nodes: a demotion counts one token", Tiers, "evict", "released += node.size", "released += 1"),
]


def all_mutations(rules: SglangRules) -> dict[str, Mutation]:
    """Every mutation that can be tried on a version, by name."""
    other = "0.5.23: " if rules.name == "sglang-0.5.9" else "0.5.9: "
    named = [*rule_changes(rules), *SETTINGS, *ADMISSION, *DECODE, *SCHEDULER]
    return {name: mutate for name, mutate in named if not name.startswith(other)}
