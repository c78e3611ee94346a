"""The driver of the client's core on a trio loop: it owns the links, the clock, and the tasks that wait for calls."""

import os
import random
from collections.abc import Sequence
from functools import partial
from typing import assert_never

import trio

from bedrockish.api.url import Address, Target
from bedrockish.api.wire import BY_COLUMN, Answered, Ask, Told
from bedrockish.client.calls import Calls
from bedrockish.client.credentials import ClientCredentials
from bedrockish.client.link_end import LIMITS, explain_end
from bedrockish.client.sansio.core import open_core
from bedrockish.client.sansio.effects import Dial, Effect, Finish, HangUp, Send
from bedrockish.client.sansio.transaction_steps import What
from bedrockish.common.deadline_timer import DeadlineTimer
from bedrockish.errors import BedrockishError, ClientClosedError
from bedrockish_net.errors import NetError
from bedrockish_net.events import Hello
from bedrockish_net.read_loop import loop_of_clients
from bedrockish_net.stream import Link


class Driver(Calls):
    """The links and calls of one client, on a trio loop."""

    def __init__(
        self, target: Target, token: bytes | None, nursery: trio.Nursery, credentials: ClientCredentials
    ) -> None:
        self.target = target
        self._credentials = credentials
        self._core = open_core(target, random.random, token)
        self._nursery = nursery
        self._links: dict[int, Link] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._outcomes: dict[int, Answered | Told | BedrockishError] = {}
        self._waiting: dict[int, trio.lowlevel.Task | None] = {}  # calls, each with the task that waits for it
        self._alarm = DeadlineTimer(self._core.deadline, trio.current_time, self._woken)
        self._is_closed = False
        self._calls_made = 0
        self._process = os.getpid()

    def _now(self) -> float:
        return trio.current_time()

    def _begin(self, what: What, timeout_s: float) -> int:
        if self._is_closed:
            raise ClientClosedError("this client is closed; open another")
        if self._process != os.getpid():
            raise ClientClosedError(
                f"this client was opened before a fork and belongs to process {self._process}; open another in this one"
            )
        self._calls_made += not isinstance(what, Ask)
        number, effects = self._core.call(what, timeout_s, trio.current_time())
        self._waiting[number] = None
        self._perform(effects)
        return number

    async def _wait(self, number: int) -> Answered | Told:
        try:
            if number in self._outcomes:
                await trio.lowlevel.checkpoint()
            else:
                await self._park(number)
        except BaseException:  # cancelled, or interrupted by Ctrl-C
            self._cancel(number)
            raise
        del self._waiting[number]
        outcome = self._outcomes.pop(number)
        if isinstance(outcome, BedrockishError):
            try:
                raise outcome
            finally:
                del outcome  # a frame that refers to its error forms a cycle, which would keep the call's parameters
        return outcome

    async def _park(self, number: int) -> None:
        """Sleep until the outcome of a call arrives. A ``trio.Event`` for each call would double the call's cost."""

        def stop_waiting(_: object) -> trio.lowlevel.Abort:
            self._waiting[number] = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiting[number] = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(stop_waiting)

    def _cancel(self, number: int) -> None:
        """Forget a call whose task no longer waits."""
        del self._waiting[number]
        self._outcomes.pop(number, None)
        self._perform(self._core.cancel(number, trio.current_time()))

    def _notify(self, what: What, timeout_s: float) -> None:
        """Make a call without waiting for its answer."""
        if not self._is_closed:
            self._perform(self._core.call(what, timeout_s, trio.current_time())[1])

    def leave_node(self, towards: Sequence[Address] = ()) -> None:
        """Move to another node, if there is one; to one of ``towards``, if any are given."""
        if not self._is_closed:
            self._perform(self._core.leave(trio.current_time(), towards))

    # --- effects and links ---

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(link, payload):
                    try:
                        self._links[link].send_nowait(payload)
                    except NetError as error:
                        # The core must not be called while its effects are performed. So drop the link: its end is
                        # reported to the core later, as the loss of this call and all others on the link.
                        self._links[link].drop("lost", str(error))
                case Finish(call, outcome):
                    if call in self._waiting:
                        self._outcomes[call] = outcome
                        task, self._waiting[call] = self._waiting[call], None
                        if task is not None:
                            trio.lowlevel.reschedule(task)
                case Dial():
                    self._nursery.start_soon(self._hold, effect)
                case HangUp(link):
                    if link in self._scopes:
                        self._scopes[link].cancel()
                case _:
                    assert_never(effect)
        self._alarm.reschedule()

    def _received(self, number: int, payloads: list[bytes]) -> None:
        now = trio.current_time()
        for payload in payloads:
            self._perform(self._core.received(number, payload, now))

    async def _hold(self, dial: Dial) -> None:
        """Open a link and read from it until it ends."""
        hello = Hello(f"client-{os.getpid()}", self.target.cluster, "client", info={BY_COLUMN: True})
        with trio.CancelScope() as scope:
            self._scopes[dial.link] = scope
            try:
                link = await self._credentials.dial(dial.address, hello, dial.timeout_s, LIMITS)
            except (NetError, OSError) as error:
                self._perform(self._core.closed(dial.link, explain_end(error), trio.current_time()))
                return
            finally:
                self._scopes.pop(dial.link, None)
        if scope.cancelled_caught:
            return
        async with trio.open_nursery() as nursery:
            self._scopes[dial.link] = nursery.cancel_scope
            self._links[dial.link] = link
            try:
                if loop := loop_of_clients():
                    link.read_by(loop)
                nursery.start_soon(link.run)
                self._perform(self._core.opened(dial.link, link.remote.info, trio.current_time()))
                link.deliver_to(partial(self._received, dial.link))
                end = await link.wait_closed()
                if link.fault is not None:
                    raise link.fault
                self._perform(self._core.closed(dial.link, explain_end(end), trio.current_time()))
            finally:
                del self._links[dial.link], self._scopes[dial.link]
                nursery.cancel_scope.cancel()

    def _woken(self) -> None:
        self._perform(self._core.woken(trio.current_time()))

    def _close(self) -> None:
        self._is_closed = True
        self._perform(self._core.close())
