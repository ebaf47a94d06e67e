"""The requests that decode one token in every step, kept as sums: a step costs nothing per member.

A *tick* is a step in which every member decodes. A member's counters are what they were when it joined plus the ticks
since; they are written back when it leaves, ends, or when something unusual happens (``dissolve``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.content import Runs
    from kvsim.kv.blocks import Pool
    from kvsim.serving.vllm.state import VllmRequest


class Cohort:
    """Members, and when each leaves.

    ``count``: members; ``tick``: ticks planned; ``settled``: ticks whose result was processed; ``changed``: the last
    tick with other members than the one before; ``context``: sum of members' computed tokens; ``by_phase``: members
    that need a block at ticks of that residue.
    """

    def __init__(self, block_size: int, max_model_len: int, overlap: bool, caching: bool) -> None:
        self.size, self.longest, self.overlap, self.caching = block_size, max_model_len, overlap, caching
        self.members: dict[VllmRequest, None] = {}
        self.count = 0
        self.tick = self.settled = self.changed = 0
        self.context = 0
        self.by_phase = [0] * block_size
        self._leaving: dict[int, list[VllmRequest]] = {}
        self._ending: dict[int, list[VllmRequest]] = {}
        self._wasted: dict[int, int] = {}
        self._explicit: dict[int, list[VllmRequest]] = {}
        self._farthest = 0  # largest (computed - tick) of a member

    # ------------------------------------------------------------------ who is in
    def can_join(self, request: VllmRequest) -> bool:
        """Tell whether a running request decodes plainly from the next step on, for at least one token."""
        sampled = request.output_done + request.in_flight
        return (
            not request.prefilling
            and not request.entangled
            and request.in_flight == self.overlap
            and request.prompt + sampled - request.computed == 1
            and sampled < min(request.outputs, self.longest - request.prompt)
        )

    def join(self, request: VllmRequest) -> None:
        """Take a request in; its first tick is the next one."""
        tick = self.tick
        outputs = min(request.outputs, self.longest - request.prompt)
        end = tick + outputs - request.output_done - request.in_flight
        wasted = self.overlap and outputs < request.limit and request.prompt + outputs < self.longest
        request.joined = tick
        request.last_tick = last = end + wasted
        self._leaving.setdefault(last, []).append(request)
        self._ending.setdefault(end, []).append(request)
        if wasted:
            self._wasted[end + 1] = self._wasted.get(end + 1, 0) + 1
        self.by_phase[(tick + 1 - request.computed) % self.size] += 1
        self.context += request.computed
        far = request.computed - tick
        if far > self._farthest or not self.members:
            self._farthest = far
        self.members[request] = None
        self.count += 1
        self.changed = tick + 1

    def need(self, joining: list[VllmRequest]) -> int:
        """Return how many blocks the next tick takes if these requests join."""
        size = self.size
        return self.by_phase[(self.tick + 1) % size] + sum(request.computed % size == 0 for request in joining)

    def start_tick(self) -> None:
        """Plan one step of all members."""
        self.tick += 1
        self.context += self.count

    def longest_context(self) -> int:
        """Return the most tokens a member reads in the tick just planned."""
        return self._farthest + self.tick

    def finish_plan(self) -> None:
        """Let go of those whose last tick was just planned: they run on only to receive it."""
        leavers = self._leaving.pop(self.tick, None)
        if leavers is None:
            return
        far = self._farthest
        for request in leavers:
            self._remove(request)
        self.changed = self.tick + 1
        if any(request.computed - request.joined == far for request in leavers):
            self._farthest = max((r.computed - r.joined for r in self.members), default=0)

    def _remove(self, request: VllmRequest) -> None:
        del self.members[request]
        self.count -= 1
        self.context -= request.computed + self.tick - request.joined
        self.by_phase[(request.joined + 1 - request.computed) % self.size] -= 1

    # ------------------------------------------------------------------ writing counters back
    def _write(self, request: VllmRequest, pool: Pool) -> None:
        """Bring a request's own counters up to date; from now on they are its state."""
        joined = request.joined
        planned = min(self.tick, request.last_tick) - joined
        received = max(min(self.settled, request.last_tick) - joined, 0)
        request.computed += planned
        request.output_done += received
        if self.overlap:
            request.in_flight += planned - received
        self._write_table(request, pool)
        request.joined = -1

    def _write_table(self, request: VllmRequest, pool: Pool) -> None:
        table = request.table
        held = -(-request.computed // self.size)
        if held > table.held:
            table.held = held
        if self.caching:
            upto = (request.computed - self.overlap) // self.size
            if upto > table.cached:
                pool.cache(table, request.keys, upto)

    def refresh(self, pool: Pool) -> None:
        """Hash what the members completed (for counters that somebody reads now); nothing else changes."""
        for request in (
            *self.members,
            *(r for ending in self._ending.values() for r in ending if r not in self.members),
        ):
            computed = request.computed
            request.computed += min(self.tick, request.last_tick) - request.joined
            self._write_table(request, pool)
            request.computed = computed

    def received(self, request: VllmRequest) -> int:
        """Return the tokens a request received, member or not."""
        if request.joined < 0:
            return request.output_done
        return request.output_done + max(min(self.settled, request.last_tick) - request.joined, 0)

    def dissolve(self, pool: Pool) -> list[VllmRequest]:
        """Write everybody's counters back and empty the cohort; outstanding ticks are settled request by request.

        Return them.
        """
        everybody = list(dict.fromkeys([*self.members, *(r for ending in self._ending.values() for r in ending)]))
        everybody.sort(key=_place)
        for tick in range(self.settled + 1, self.tick + 1):
            was = [request for request in everybody if request.joined < tick <= request.last_tick]
            self._explicit[tick] = self._explicit.get(tick, []) + was
        for request in everybody:
            self._write(request, pool)
        self.members.clear()
        self.count = 0
        self._leaving.clear()
        self._ending.clear()
        self._wasted.clear()
        self.by_phase = [0] * self.size
        self.context = 0
        self._farthest = 0
        self.changed = self.tick + 1
        return everybody

    # ------------------------------------------------------------------ results
    def settle(self, count: int, pool: Pool) -> tuple[int, list[VllmRequest], list[VllmRequest]]:
        """Process the next outstanding tick of ``count`` members.

        Return (tokens of members, members that got their last one with all counters written, requests to settle one by
        one).
        """
        self.settled = tick = self.settled + 1
        one_by_one = self._explicit.pop(tick, None)
        ended = self._ending.pop(tick, [])
        for request in ended:
            self._write(request, pool)
            if self.caching:
                upto = (request.prompt + request.output_done - 1) // self.size
                if upto > request.table.cached:
                    pool.cache(request.table, request.keys, upto)
        if one_by_one is not None:
            return 0, ended, one_by_one
        return count - self._wasted.pop(tick, 0), ended, []

    # ------------------------------------------------------------------ closed form
    def quiet(self, free: int) -> int:
        """Return how many further ticks have the same members and need no more than ``free`` blocks in all."""
        most = min(self._leaving) - self.tick
        if self._ending:
            most = min(most, min(self._ending) - self.tick + self.overlap)
        return min(most, self._affordable(free, most))

    def _affordable(self, free: int, most: int) -> int:
        size = self.size
        per_cycle = self.count
        cycles = free // per_cycle
        ticks = cycles * size
        free -= cycles * per_cycle
        while ticks < most:
            free -= self.by_phase[(self.tick + ticks + 1) % size]
            if free < 0:
                break
            ticks += 1
        return ticks

    def advance(self, ticks: int) -> int:
        """Plan and settle ``ticks`` ticks; return the blocks they take."""
        size = self.size
        cycles, rest = divmod(ticks, size)
        blocks = cycles * self.count + sum(self.by_phase[(self.tick + i) % size] for i in range(1, rest + 1))
        self.tick += ticks
        self.settled += ticks
        self.context += ticks * self.count
        return blocks


def _place(request: VllmRequest) -> int:
    return request.place


class LiveOutputs:
    """Names of the first own block of every live request: whose future blocks does a new chain contain?"""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._owners: dict[int, list[VllmRequest]] = {}

    def add(self, request: VllmRequest, key: int) -> None:
        """A request that will generate block ``key`` is here."""
        if key not in self._owners:
            insort(self._keys, key)
            self._owners[key] = []
        self._owners[key].append(request)
        request.own_key = key

    def remove(self, request: VllmRequest) -> None:
        """It ended."""
        owners = self._owners.get(request.own_key)
        if owners is None or request not in owners:
            return
        owners.remove(request)
        if not owners:
            del self._owners[request.own_key]
            self._keys.pop(bisect_left(self._keys, request.own_key))

    def inside(self, chain: Runs) -> list[VllmRequest]:
        """Return the live requests whose own blocks a chain contains."""
        out: list[VllmRequest] = []
        keys = self._keys
        for first, count in chain:
            at = bisect_left(keys, first)
            while at < len(keys) and keys[at] < first + count:
                out.extend(self._owners[keys[at]])
                at += 1
        return out
