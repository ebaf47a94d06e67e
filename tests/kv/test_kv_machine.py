"""The cache against a naive model of it, over random operations: every answer, counter, lock and residence equal."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from kv_naive import Naive

from kvsim.content import canonical, tokens
from kvsim.errors import InvariantError
from kvsim.kv.invariants import check
from kvsim.verify.cache_replay import CacheReplay, differences

OUT = 1_000_000


@st.composite
def prompts(draw, page):
    """Six prompts that share prefixes: fresh ones, and continuations of an earlier prompt and its generated tokens."""
    made = []
    part = st.tuples(st.sampled_from([0, 3, 1000, 2000]), st.integers(1, 3 * page + 6))
    for number in range(6):
        runs = draw(st.lists(part, min_size=1, max_size=3))
        if made and draw(st.booleans()):
            before = draw(st.integers(0, len(made) - 1))
            earlier = made[before][: draw(st.integers(1, len(made[before])))]
            runs = [*earlier, (OUT * (before + 1), draw(st.integers(0, page + 3))), *runs[:1]]
        made.append(list(canonical(runs)))
        if number and draw(st.integers(0, 4)) == 0:
            made[-1] = list(made[0])
    return made


@st.composite
def worlds(draw):
    page = draw(st.sampled_from([1, 1, 4, 16]))
    old = draw(st.booleans())
    device = page * draw(st.integers(6, 14)) + (draw(st.integers(10, 60)) if page == 1 else 0)
    ratio = draw(st.sampled_from([None, 1.0, 1.5, 3.0] if old else [None, 0.3, 0.7, 1.0, 2.0, 4.0]))
    policy = draw(st.sampled_from(["write_through", "write_through_selective", "write_back"]))
    return {
        "page_size": page, "device_tokens": device, "hicache_ratio": ratio, "write_policy": policy,
        "host_tokens": 0 if ratio is None else (int(device * ratio) // page + 1) * page,
        "eviction": draw(st.sampled_from(["lru", "lfu", "fifo", "mru", "filo", "priority", "slru"])),
        "write_delay": draw(st.integers(0, 4)), "load_delay": draw(st.integers(0, 4)),
        "engine": "sglang 0.5.9" if old else "sglang 0.5.23",
        "prompts": draw(prompts(page)), "priorities": draw(st.lists(st.integers(-1, 2), min_size=6, max_size=6)),
    }


class CacheMachine(RuleBasedStateMachine):
    """``idle``, ``computing`` (admitted, prompt not complete), ``computed``, ``running`` partition the requests."""

    @initialize(world=worlds())
    def start(self, world):
        requests = {
            str(i): {"in": prompt, "out": OUT * (i + 1), "priority": world["priorities"][i]}
            for i, prompt in enumerate(world["prompts"])
        }
        self.real = CacheReplay({"meta": world, "requests": requests})
        self.naive = Naive(
            old=world["engine"] == "sglang 0.5.9", page=world["page_size"], device=world["device_tokens"],
            host=world["host_tokens"], policy=world["write_policy"], eviction=world["eviction"],
            write_delay=0 if world["write_policy"] == "write_back" else world["write_delay"],
            load_delay=world["load_delay"],
            requests={int(i): (tokens(q["in"]), q["out"], q["priority"]) for i, q in requests.items()},
        )
        self.state = dict.fromkeys(range(6), "idle")
        self.dead = False

    def where(self, state):
        return [r for r, s in self.state.items() if s == state]

    def do(self, op):
        """Carry ``op`` out on both; a step that the driver cannot allocate must fail on both and ends the example."""
        op = {**op, "tree": []}
        try:
            got = self.real.step(op)
        except InvariantError:
            self.dead = True
            with pytest.raises(AssertionError):
                self.naive.step(op)
            return None
        expected = self.naive.step(op)
        assert differences({**op, **expected}, got) == []
        check(self.real.cache, [h for h in self.real.holdings.values() if h.node is not None])
        return got

    def holding(self, r):
        return self.real.holdings[r]

    def has(self, state):
        return not self.dead and self.where(state)

    def settle(self, r):
        done = self.holding(r).committed == self.holding(r).total
        self.state[r] = "computed" if done else "computing"

    @precondition(lambda self: self.has("idle"))
    @rule(pick=st.integers(0, 5), chk=st.booleans(), chunk=st.sampled_from([None, None, 5, 17, 33]))
    def admit(self, pick, chk, chunk):
        self.admit_one(pick, chk, chunk)

    def admit_one(self, pick, chk, chunk):
        waiting = self.where("idle")
        r = waiting[pick % len(waiting)]
        op = {"op": "admit", "r": r, "chk": int(chk)}
        got = self.do(op | {"chunk": chunk} if chunk else op)
        if got and got["adm"]:
            self.settle(r)

    @precondition(lambda self: self.has("computing"))
    @rule(size=st.integers(0, 40))
    def chunk(self, size):
        self.chunk_one(size)

    def chunk_one(self, size):
        r = self.where("computing")[0]
        cache, holding = self.real.cache, self.holding(r)
        size = min(size, holding.total - holding.committed)
        if size + cache.page > cache.free + cache.evictable:
            size = 0
        if self.do({"op": "chunk", "r": r, "n": size}):
            self.settle(r)

    @precondition(lambda self: self.has("computed"))
    @rule(last=st.booleans())
    def prefilled(self, last):
        self.prefilled_one(-1 if last else 0)

    def prefilled_one(self, at):
        r = self.where("computed")[at]
        if self.do({"op": "prefilled", "r": r}):
            self.state[r] = "running"

    @precondition(lambda self: self.has("running"))
    @rule(k=st.integers(1, 9), several=st.booleans())
    def decode(self, k, several):
        batch = self.where("running")
        self.do({"op": "decode", "rs": batch if several else batch[:1], "k": k})

    @precondition(lambda self: self.has("running"))
    @rule(last=st.booleans(), retracted=st.booleans())
    def end(self, last, retracted):
        self.end_one("retract" if retracted else "finish", -1 if last else 0)

    def end_one(self, how, at):
        r = self.where("running")[at]
        if self.do({"op": how, "r": r}):
            self.state[r] = "idle"

    @precondition(lambda self: self.has("idle"))
    @rule(
        picks=st.lists(st.integers(0, 5), min_size=1, max_size=6), chk=st.booleans(),
        chunk=st.sampled_from([None, None, 17]), k=st.integers(0, 8), ends=st.booleans(),
    )
    def serve(self, picks, chk, chunk, k, ends):
        """Whole requests one after the other, so that the pools fill up; they stay running unless they end."""
        for pick in picks:
            if self.has("idle"):
                self.admit_one(pick, chk, chunk)
            while self.has("computing"):
                before = self.holding(self.where("computing")[0]).committed
                self.chunk_one(17)
                if self.has("computing") and self.holding(self.where("computing")[0]).committed == before:
                    break
            if self.has("computed"):
                self.prefilled_one(-1)
            if k and self.has("running"):
                self.do({"op": "decode", "rs": self.where("running"), "k": k})
            if ends and self.has("running"):
                self.end_one("finish", -1)

    @precondition(lambda self: not self.dead)
    @rule(pick=st.integers(0, 5))
    def peek(self, pick):
        self.do({"op": "peek", "r": pick})

    @precondition(lambda self: not self.dead)
    @rule()
    def poll(self):
        self.do({"op": "check"})

    @precondition(lambda self: not self.dead)
    @rule(n=st.integers(1, 60), host=st.booleans())
    def evict(self, n, host):
        self.do({"op": "evict_host", "n": n, "ret": 0} if host else {"op": "evict", "n": n})


def run(examples, steps):
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=quiet,
            derandomize=True,
        ),
    )


def test_every_answer_of_the_cache_equals_the_naive_models():
    run(300, 40)


@pytest.mark.long
def test_every_answer_of_the_cache_equals_the_naive_models_over_thousands_of_worlds():
    run(3000, 50)
