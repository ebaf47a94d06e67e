"""Builds the machine a resolved scenario describes: scheduler, step time, links, client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cost.build import build_links
from kvsim.errors import ConfigError
from kvsim.sim.rank_links import RankLinks

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.config.resolved import Resolved
    from kvsim.cost.links import Links
    from kvsim.serving.port import Scheduler, Transfers
    from kvsim.serving.sglang.scheduler import SglangScheduler


def build_scheduler(resolved: Resolved, links: Links | RankLinks) -> Scheduler:
    """Return the scheduler of the scenario's engine family on its own empty cache, or one per rank in lockstep."""
    scheduler = SCHEDULERS[resolved.family](resolved, links)
    return _guarded(resolved, scheduler) if resolved.scenario.run.invariants else scheduler


def build_rank_links(resolved: Resolved) -> Links | RankLinks:
    """Return the engine's links: one set, or one per rank in lockstep (DP attention, data parallel)."""
    ranks = resolved.capacity.extra.get("dp", 1)
    return build_links(resolved) if ranks == 1 else RankLinks([build_links(resolved) for _ in range(ranks)])


def _guarded(resolved: Resolved, scheduler: Scheduler) -> Scheduler:
    """Check the cache's laws after every call (``run: {invariants: true}``)."""
    for rank in getattr(scheduler, "ranks", [scheduler]):
        if resolved.family == "vllm":
            from kvsim.serving.vllm.invariants import guard as guard_vllm

            guard_vllm(rank)
        elif (cache := getattr(rank, "cache", None)) is not None:
            from kvsim.kv.invariants import guard

            guard(cache)
    return scheduler


def _sglang(resolved: Resolved, links: Links | RankLinks) -> Scheduler:
    from kvsim.serving.lockstep import LockstepScheduler, least_loaded, round_robin

    if not isinstance(links, RankLinks):
        return _sglang_rank(resolved, links)
    method = resolved.scenario.engine.load_balance_method
    choices = {"round_robin": round_robin, "total_requests": least_loaded}
    if method not in choices:
        raise ConfigError(f"engine.load_balance_method: {method} is not modelled; modelled are {', '.join(choices)}")
    ranks = [_sglang_rank(resolved, own) for own in links.ranks]
    if not resolved.scenario.engine.enable_prefill_delayer:
        return LockstepScheduler(list(ranks), choices[method])
    from kvsim.serving.sglang.delayer import PrefillDelayer

    delayer = PrefillDelayer(ranks, resolved.scenario.engine.prefill_delayer_max_delay_passes)
    return LockstepScheduler(list(ranks), choices[method], delayer.before_plan, delayer.most_passes)


def _sglang_rank(resolved: Resolved, transfers: Transfers) -> SglangScheduler:
    from kvsim.cost.resolve import speculation_of
    from kvsim.serving.sglang.scheduler import SglangScheduler

    speculation = speculation_of(resolved)
    if speculation is not None:
        from kvsim.serving.sglang.speculative import SpeculativeScheduler

        return SpeculativeScheduler(resolved.engine, transfers, speculation)
    return SglangScheduler(resolved.engine, transfers)


def _vllm(resolved: Resolved, links: Links | RankLinks) -> Scheduler:
    from kvsim.serving.vllm.scheduler import VllmScheduler

    if not isinstance(links, RankLinks):
        return VllmScheduler(resolved.engine, links)
    from kvsim.serving.lockstep import LockstepScheduler, least_weighted

    return LockstepScheduler([VllmScheduler(resolved.engine, own) for own in links.ranks], least_weighted)


#: Engine family -> what builds its scheduler.
SCHEDULERS: dict[str, Callable[[Resolved, Links | RankLinks], Scheduler]] = {"sglang": _sglang, "vllm": _vllm}
