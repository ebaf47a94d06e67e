"""Where simulations run: here, in local processes, or on a Dask cluster. The seam is ``concurrent.futures.Executor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from kvsim.errors import ConfigError, InputError, MissingExtra

ATTEMPTS = 3  # a task whose worker died this often is given up


@contextmanager
def cluster_executor(address: str | None) -> Iterator[Executor | None]:
    """Yield an executor on a Dask cluster: ``tcp://host:port``, or ``local:N`` for N worker processes here; None without an address.

    Lost workers cost a retry. Raises MissingExtra, ConfigError, InputError.
    """
    if address is None:
        yield None
        return
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingExtra("--cluster", "cluster") from None
    kind, _, count = address.partition(":")
    if kind == "local" and not (count.isdecimal() and 0 < int(count) <= 1024):
        raise ConfigError(
            f"--cluster {address!r:.80}: must be local:N with N from 1, or the address of a scheduler, for example tcp://host:8786"
        )
    if kind == "local":
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "120s", "distributed.comm.timeouts.tcp": "120s"}),
            LocalCluster(n_workers=int(count), threads_per_worker=1, dashboard_address=None, silence_logs=40) as cluster,
            Client(cluster) as client,
        ):
            yield client.get_executor(retries=ATTEMPTS)
        return
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"--cluster {address}: no scheduler answers there: {error}") from None
    with client:
        yield client.get_executor(retries=ATTEMPTS)


def run_tasks(
    work: Callable[[Any], Any],
    tasks: Sequence[Any],
    keep: Callable[[int, Any], None],
    *,
    workers: int = 1,
    executor: Executor | None = None,
) -> None:
    """Call ``keep(index, work(task))`` for every task as results come; the order of calls is not fixed, the results are.

    ``executor``: any; else ``workers`` local processes, or this process for one. A local worker that dies costs its task a retry.
    """
    if executor is not None:
        _collect(executor, work, dict(enumerate(tasks)), keep)
    elif workers > 1 and len(tasks) > 1:
        _run_local(work, tasks, keep, workers)
    else:
        for index, task in enumerate(tasks):
            keep(index, work(task))


def _run_local(work: Callable[[Any], Any], tasks: Sequence[Any], keep: Callable[[int, Any], None], workers: int) -> None:
    left = dict(enumerate(tasks))

    def done(index: int, outcome: Any) -> None:
        del left[index]
        keep(index, outcome)

    for attempt in range(ATTEMPTS + 1):
        try:
            with ProcessPoolExecutor(min(workers, len(left))) as pool:
                _collect(pool, work, dict(left), done)
            return
        except BrokenExecutor:
            if attempt == ATTEMPTS:
                raise InputError(f"worker processes died {ATTEMPTS + 1} times (out of memory?); {len(left)} runs are left") from None


def _collect(pool: Executor, work: Callable[[Any], Any], tasks: dict[int, Any], keep: Callable[[int, Any], None]) -> None:
    futures = {pool.submit(work, task): index for index, task in tasks.items()}
    try:
        for future in as_completed(futures):
            keep(futures[future], future.result())
    except BaseException:
        for future in futures:
            future.cancel()
        raise
