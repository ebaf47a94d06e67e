"""Laws of a vLLM engine's state, checked after every call of the machine when ``run.invariants`` is on.

Blocks are conserved, every block has as many users as tables that hold it, counters equal a recount, every request is in
exactly one place, and nobody has computed more than it knows or holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvsim.kv.blocks import BlockPool, Table
from kvsim.kv.blocks_extent import ExtentPool
from kvsim.kv.blocks_extent_queue import Extent, ExtentTable
from kvsim.kv.invariants import require
from kvsim.serving.vllm.state import ENDED, LOADING, RUNNING

if TYPE_CHECKING:
    from kvsim.serving.vllm.scheduler import VllmScheduler
    from kvsim.serving.vllm.state import VllmRequest

CHECKED = ("submit", "abort", "plan", "settle", "advance")


def check(scheduler: VllmScheduler) -> None:
    """Check every law; InvariantError names the one that is broken."""
    scheduler.refresh()
    _check_requests(scheduler)
    tables = [request.table for request in scheduler.holders()]
    tables += [table for tables in scheduler.withheld().values() for table in tables]
    if isinstance(scheduler.pool, ExtentPool):
        _check_extents(scheduler.pool, tables)
    elif isinstance(scheduler.pool, BlockPool):
        _check_blocks(scheduler.pool, tables, scheduler.connector.held_blocks())


def _check_requests(scheduler: VllmScheduler) -> None:
    running, queued = scheduler.running, [*scheduler.skipped, *scheduler.waiting]
    everybody = [*running, *queued]
    require("every request is in one place", len({id(request) for request in everybody}), len(everybody))
    require("the running list is in order of admission", running, sorted(running, key=lambda request: request.place))
    require("who runs has the phase running", all(request.phase == RUNNING for request in running), True)
    require("who waits does not run", any(request.phase in (RUNNING, ENDED) for request in queued), False)
    require("at most max_num_seqs run", len(running) <= scheduler.params.max_num_seqs, True)
    members = set(map(id, scheduler.cohort.members))
    require("members of the cohort run", members <= set(map(id, running)), True)
    require("nobody is a member and special", members & set(map(id, scheduler.special)), set())
    for request in queued:
        _check_waiting(request)
    for request in running:
        if id(request) not in members and request.joined < 0:
            most = request.known + request.in_flight
            require(f"{request.spec.id}: no more computed than known", request.computed <= most, True)
            need = -(-request.computed // scheduler.params.block_size)
            require(f"{request.spec.id}: what is computed has blocks", request.table.held >= need, True)


def _check_waiting(request: VllmRequest) -> None:
    holds = request.table.held > 0
    require(f"{request.spec.id}: only loaded requests hold blocks while they wait", holds, request.computed > 0)
    if request.phase == LOADING:
        require(f"{request.spec.id}: a loading request holds blocks", holds, True)


def _check_extents(pool: ExtentPool, tables: list[Any]) -> None:
    users: Counter[int] = Counter()
    extents: dict[int, Extent] = {}
    bare = 0
    for table in tables:
        assert isinstance(table, ExtentTable)
        covered = 0
        for piece, hi in table.pieces:
            for part in pool.parts(piece, hi):
                users[id(part)] += 1
                extents[id(part)] = part
                covered += part.hi - part.lo
        require("a table's pieces are its hashed blocks", covered, table.cached)
        bare += table.held - table.cached
    for key, part in extents.items():
        require(f"users of {part.lo}..{part.hi}", part.refs, users[key])
    used = bare + sum(part.hi - part.lo for part in extents.values())
    free = list(pool.queue())
    require("free blocks", len(free), pool.free)
    require("blocks", used + len(free), pool.usable)
    named = [key for key in free if key >= 0]
    require("idle hashed blocks", len(named), pool.idle_hashed)
    held = [key for part in extents.values() for key in range(part.lo, part.hi)]
    require("hashed blocks", len(named) + len(held), pool.hashed)
    require("distinct contents", len({*named, *held}), pool.distinct)


def _check_blocks(pool: BlockPool, tables: list[Any], kept: list[Any]) -> None:
    users: Counter[int] = Counter(map(id, kept))
    blocks = {id(block): block for block in kept}
    for table in tables:
        assert isinstance(table, Table)
        require("a table holds what it says", len(table.blocks), table.held)
        for block in table.blocks:
            users[id(block)] += 1
            blocks[id(block)] = block
    for key, block in blocks.items():
        require("users of a block", block.refs, users[key])
    free = list(pool.queue())
    require("free blocks", len(free), pool.free)
    require("blocks", len(blocks) + len(free), pool.usable)
    keys = [block.key for block in [*blocks.values(), *free] if block.key >= 0]
    require("hashed blocks", len(keys), pool.hashed)
    require("distinct contents", len(set(keys)), pool.distinct)


def guard(scheduler: VllmScheduler) -> VllmScheduler:
    """Make the scheduler check every law after each call of the machine; return it."""
    for name in CHECKED:
        setattr(scheduler, name, _checked(scheduler, getattr(scheduler, name)))
    return scheduler


def _checked(scheduler: VllmScheduler, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        result = call(*given)
        check(scheduler)
        return result

    return run
