"""vLLM's SimpleCPUOffloadConnector: a second block pool in CPU memory (v1/simple_kv_offload/manager.py, worker.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.blocks import Block, BlockPool, Table
from kvsim.serving.vllm.connector import Connector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.serving.port import Transfers
    from kvsim.serving.vllm.core import VllmCore
    from kvsim.serving.vllm.state import VllmRequest, VllmStep


class _Load:
    """A load of one request from pinned CPU blocks."""

    __slots__ = ("blocks", "owner", "since", "ticket")

    def __init__(self, owner: VllmRequest, blocks: list[Block]) -> None:
        self.owner, self.blocks = owner, blocks
        self.since = 0
        self.ticket: object = None


class _Store:
    """All stores of one pass: (GPU block, CPU block) pairs, each GPU block held by a reference of its own."""

    __slots__ = ("pairs", "ticket")

    def __init__(self) -> None:
        self.pairs: list[tuple[Block, Block]] = []
        self.ticket: object = None


class SimpleOffload(Connector):
    """Eager: stores every confirmed block of scheduled requests once. Lazy: what the free queue is about to lose."""

    present = True

    def __init__(self, scheduler: VllmCore, transfers: Transfers) -> None:
        params = scheduler.params
        self.params, self.log = params, scheduler.log
        assert isinstance(scheduler.pool, BlockPool)
        self.pool = scheduler.pool
        self.transfers = transfers
        self.cpu = BlockPool(params.cpu_blocks - 1)
        self._pins: dict[VllmRequest, list[Block]] = {}
        self._loads: list[_Load] = []  # decided in this pass
        self._submitted: list[_Load | _Store] = []
        #: pass number -> transfers to submit after its forward
        self._new: dict[int, tuple[list[_Load], _Store | None]] = {}
        self._in_flight = [0, 0]  # store events, loads
        self._holding: list[_Store] = []
        self._cursor: Block | None = None

    # ------------------------------------------------------------------ lookup and load
    def lookup(self, request: VllmRequest, local: int) -> int | None:
        """Return loadable tokens beyond the local hit and pin their CPU blocks; older pins of the request go first."""
        self._unpin(request)
        size = self.params.block_size
        first = local // size
        found: list[Block] = []
        for key in request.chain(first, first + (request.known - 1 - local) // size):
            block = self.cpu.first(key)
            if block is None:
                break
            found.append(block)
        if found:
            for block in found:
                self.cpu.touch(block)
            self._pins[request] = found
        return len(found) * size

    def _unpin(self, request: VllmRequest) -> None:
        blocks = self._pins.pop(request, None)
        if blocks:
            self.cpu.put_back(blocks)

    def load(self, request: VllmRequest, local: int, tokens: int) -> None:
        """Hand the pins over to a load."""
        self._loads.append(_Load(request, self._pins.pop(request)))
        self._in_flight[1] += 1
        self.loaded_tokens += tokens

    def admitted(self, request: VllmRequest) -> None:
        """A resumed request is examined from its first block again."""
        if request.resumed:
            request.store_from = 0

    def ended(self, request: VllmRequest) -> None:
        """Drop the pins of a refused request."""
        self._unpin(request)

    # ------------------------------------------------------------------ the end of schedule()
    def build(self, step: VllmStep, now: int) -> None:
        """Decide this pass's store event; a pass with preemptions waits for everything submitted in earlier ones."""
        if step.preempted:
            for transfer in self._submitted:
                step.blocked_until = max(step.blocked_until, self.transfers.finish_time(transfer.ticket, now))
            if self.log is not None:
                self.log.flushed = 1
        before = self.cpu.evicted
        store = self._lazy() if self.params.lazy_offload else self._eager(step)
        if self.log is not None:
            self.log.cpu_evicted = self.cpu.evicted - before
            self.log.stored_blocks = len(store.pairs)
        if store.pairs:
            self._in_flight[0] += 1
            self._holding.append(store)
            self.stored_tokens += len(store.pairs) * self.params.block_size
        self._new[step.number] = (self._loads, store if store.pairs else None)
        self._loads = []

    def _eager(self, step: VllmStep) -> _Store:
        """First-time admissions, then running, then resumed requests (_prepare_eager_store_specs)."""
        store = _Store()
        room = self.cpu.free
        for request, done in self._in_order(step):
            room -= self._store_confirmed(request, done, room, store)
        return store

    def _in_order(self, step: VllmStep) -> Iterable[tuple[VllmRequest, int]]:
        admitted = {id(request) for request in step.admitted}
        groups: tuple[list[tuple[VllmRequest, int]], ...] = ([], [], [])
        for request, count, sampled in step.work:
            flying = request.in_flight - (sampled and self.params.async_scheduling)
            confirmed = (request.computed - count - flying) // self.params.block_size
            group = 1 if id(request) not in admitted else 2 if request.resumed else 0
            groups[group].append((request, confirmed))
        return [*groups[0], *groups[1], *groups[2]]

    def _store_confirmed(self, request: VllmRequest, stop: int, room: int, store: _Store) -> int:
        chosen: list[Block] = []
        table = request.table
        assert isinstance(table, Table)
        blocks, at = table.blocks, request.store_from
        while at < stop:
            block = blocks[at]
            if block.key >= 0 and not block.storing and self.cpu.first(block.key) is None:
                if len(chosen) == room:
                    break
                chosen.append(block)
            at += 1
        request.store_from = max(at, request.store_from)
        self._begin(chosen, store)
        return len(chosen)

    def _begin(self, chosen: list[Block], store: _Store) -> None:
        for block, copy in zip(chosen, self.cpu.pop(len(chosen)), strict=True):
            self.pool.touch(block)
            block.storing = True
            store.pairs.append((block, copy))

    def _lazy(self) -> _Store:
        """Walk the free queue behind the cursor and store what is missing on the CPU (_prepare_lazy_store_specs)."""
        store, chosen, room = _Store(), list[Block](), self.cpu.free
        if self._cursor is not None and self._cursor.before is None:
            self._cursor = None  # no longer free
        if not room:
            return store
        walk = self.pool.queue() if self._cursor is None else self.pool.behind(self._cursor)
        for left, block in zip(range(self._lazy_blocks(), 0, -1), walk, strict=False):
            self._cursor = block
            if block.key >= 0 and self.cpu.first(block.key) is None:
                chosen.append(block)
                if len(chosen) == room or left == 1:
                    break
        self._begin(chosen, store)
        return store

    def _lazy_blocks(self) -> int:
        return 2 * -(-self.params.max_num_batched_tokens // self.params.block_size)

    # ------------------------------------------------------------------ after the forward
    def forwarded(self, step: VllmStep, now: int) -> None:
        """Submit the pass's loads, then its stores, and report what is complete."""
        loads, store = self._new.pop(step.number)
        size = self.params.block_size
        for load in loads:
            load.since, load.ticket = now, self.transfers.load(len(load.blocks) * size, now)
        if store is not None:
            store.ticket = self.transfers.write(len(store.pairs) * size, now)
        self._submitted.extend(loads)
        if store is not None:
            self._submitted.append(store)
        rest = []
        for transfer in self._submitted:
            if self.transfers.done(transfer.ticket, now):
                step.report.append(transfer)
            else:
                rest.append(transfer)
        self._submitted = rest

    def process(self, step: VllmStep, now: int) -> list[VllmRequest]:
        """Complete loads, then stores."""
        loaded = []
        report = step.take_report()
        for transfer in report:
            if isinstance(transfer, _Load):
                self._in_flight[1] -= 1
                self.cpu.put_back(transfer.blocks)
                transfer.owner.load_ps += self.transfers.finish_time(transfer.ticket, now) - transfer.since
                loaded.append(transfer.owner)
        for transfer in report:
            if isinstance(transfer, _Store):
                self._in_flight[0] -= 1
                self._holding.remove(transfer)
                self._stored(transfer)
        return loaded

    def _stored(self, store: _Store) -> None:
        for block, copy in store.pairs:
            block.storing = False
            self.cpu.name(copy, block.key)
        self.cpu.put_back([copy for _, copy in store.pairs])
        self.pool.put_back([block for block, _ in store.pairs])

    def held_blocks(self) -> list[Block]:
        """Return the device blocks of stores whose completion was not processed."""
        return [block for store in self._holding for block, _ in store.pairs]

    def busy(self) -> bool:
        """Tell whether transfers are in flight."""
        return self._in_flight != [0, 0]

    def indifferent(self, request: VllmRequest) -> bool:
        """Every pass examines every scheduled request."""
        return False

    def quiet(self, waiting: bool) -> bool:
        """No pass is without effect."""
        return False

    def reset(self) -> None:
        """Forget the CPU pool's contents, if no copy uses it."""
        self.cpu.reset()

    def host_tokens(self) -> int:
        """Return the tokens resident on the CPU."""
        return self.cpu.hashed * self.params.block_size

    def host_evicted_tokens(self) -> int:
        """Return the tokens that left the CPU tier so far."""
        return self.cpu.evicted * self.params.block_size

    def resident_among(self, first: int, count: int) -> int:
        """Return how many of the blocks named first .. first + count - 1 the CPU tier holds."""
        return sum(self.cpu.first(key) is not None for key in range(first, first + count))

    def state(self) -> tuple[int, ...]:
        """Return (distinct CPU contents, free CPU blocks, store events, loads in flight)."""
        return self.cpu.distinct, self.cpu.free, *self._in_flight
