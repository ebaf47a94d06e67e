"""A piece of work in a thread, with progress and a way to stop it: what the page runs a long simulation in."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from collections.abc import Callable


class Cancelled(KvsimError):
    """The user stopped the work."""


class Job:
    """One run of ``work(progress)``; ``progress`` raises Cancelled at its next call after ``cancel``.

    ``state``: running, done, failed, cancelled. ``result``: what the work returned. ``error``: the message of a
    KvsimError;
    any other exception is kept and raised again by ``join``.
    """

    def __init__(self, work: Callable[[Callable[[int], None]], Any]) -> None:
        self.state = "running"
        self.done = 0
        self.result: Any = None
        self.error = ""
        self._bug: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Callable[[int], None]], Any]) -> None:
        try:
            self.result = work(self._progress)
            self.state = "done"
        except Cancelled:
            self.state = "cancelled"
        except KvsimError as error:
            self.error, self.state = str(error), "failed"
        except BaseException as error:
            self._bug, self.error, self.state = error, repr(error), "failed"

    def _progress(self, done: int) -> None:
        self.done = done
        if self._stop.is_set():
            raise Cancelled("stopped")

    def cancel(self) -> None:
        """Ask the work to stop; it does at its next progress report."""
        self._stop.set()

    def join(self, timeout: float | None = None) -> Job:
        """Wait until the work ended (or ``timeout`` seconds) and return this job; raises what was not a KvsimError."""
        self._thread.join(timeout)
        if self._bug is not None:
            raise self._bug
        return self
