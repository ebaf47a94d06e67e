"""Lets the clients' time pass: sends each request when its client wants to, and hands it to an engine.

Arrivals are urgent: a request sent at ``t`` is seen by a step that ends at ``t``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simpy.events import URGENT, Event

if TYPE_CHECKING:
    from simpy import Environment

    from kvsim.workload.spec import Client, RequestSpec


def urgent_at(env: Environment, when: int, call: Callable[[Event], None]) -> Event:
    """Call ``call`` at time ``when``, before every ordinary event of that time."""
    event = Event(env)
    event._ok = True
    event._value = None
    assert event.callbacks is not None
    event.callbacks.append(call)
    env.schedule(event, URGENT, when - int(env.now))
    return event


class Source:
    """Sends a client's requests in simulated time.

    ``deliver`` takes the requests sent at one instant. ``wanted`` is re-read after every send and whenever a request ends,
    so closed loops need no process of their own.
    """

    def __init__(self, env: Environment, client: Client, deliver: Callable[[list[RequestSpec]], None]) -> None:
        self.env, self.client, self.deliver = env, client, deliver
        self._armed: int | None = None
        self.sent = 0

    def start(self) -> None:
        """Arm the first arrival."""
        self._arm()

    def ended(self, request_id: str, ok: bool) -> None:
        """Tell the client that a request ended now; it may want to send at once or earlier than planned."""
        self.client.ended(request_id, int(self.env.now), ok)

    def rearm(self) -> None:
        """Send what is due now and arm the next arrival; call it after ``ended``."""
        self._send_due()
        self._arm()

    def _send_due(self) -> None:
        now = int(self.env.now)
        while (wanted := self.client.next_send()) is not None and wanted <= now:  # a refusal can make the next one due at once
            specs = self.client.send(now)
            self.sent += len(specs)
            self.deliver(specs)

    def _arm(self) -> None:
        wanted = self.client.next_send()
        if wanted is None or (self._armed is not None and self._armed <= wanted):
            return
        self._armed = wanted
        urgent_at(self.env, max(wanted, int(self.env.now)), self._fire)

    def _fire(self, _: Event) -> None:
        if self._armed is not None and self._armed <= self.env.now:
            self._armed = None
        self._send_due()
        self._arm()
