"""Builds the machine a resolved scenario describes: scheduler, step time, links, client."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.config.resolved import Resolved
    from kvsim.serving.port import Scheduler, Transfers


def build_scheduler(resolved: Resolved, transfers: Transfers) -> Scheduler:
    """Return the scheduler of the scenario's engine family, on its own empty cache."""
    scheduler = SCHEDULERS[resolved.family](resolved, transfers)
    return _guarded(resolved, scheduler) if resolved.scenario.run.invariants else scheduler


def _guarded(resolved: Resolved, scheduler: Scheduler) -> Scheduler:
    """Check the cache's laws after every call (``run: {invariants: true}``)."""
    if resolved.family == "vllm":
        from kvsim.serving.vllm.invariants import guard as guard_vllm

        for rank in getattr(scheduler, "ranks", [scheduler]):
            guard_vllm(rank)
        return scheduler
    cache = getattr(scheduler, "cache", None)
    if cache is not None:
        from kvsim.kv.invariants import guard

        guard(cache)
    return scheduler


def _sglang(resolved: Resolved, transfers: Transfers) -> Scheduler:
    from kvsim.cost.resolve import speculation_of
    from kvsim.serving.sglang.scheduler import SglangScheduler

    speculation = speculation_of(resolved)
    if speculation is not None:
        from kvsim.serving.sglang.speculative import SpeculativeScheduler

        return SpeculativeScheduler(resolved.engine, transfers, speculation)
    return SglangScheduler(resolved.engine, transfers)


def _vllm(resolved: Resolved, transfers: Transfers) -> Scheduler:
    from kvsim.serving.vllm.scheduler import VllmScheduler

    ranks = [VllmScheduler(resolved.engine, transfers) for _ in range(resolved.capacity.extra.get("dp", 1))]
    if len(ranks) == 1:
        return ranks[0]
    from kvsim.serving.lockstep import LockstepScheduler, least_weighted

    return LockstepScheduler(list(ranks), least_weighted)


#: Engine family -> what builds its scheduler.
SCHEDULERS: dict[str, Callable[[Resolved, Transfers], Scheduler]] = {"sglang": _sglang, "vllm": _vllm}
