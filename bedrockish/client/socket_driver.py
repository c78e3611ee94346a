"""The driver of the client's core without an event loop: the thread that makes a call waits for the socket itself.

Threads may share a client. One of the waiting threads reads for all; when it has its own answer, another waiting thread
continues. While no thread of a client waits for an answer, only the keeper, one thread for the whole program, reads
for the client once a second, so that the client answers its nodes' pings.

The methods of the trio client are used unchanged: with this driver their awaits never wait for an event loop, so a
coroutine runs to its end at the first ``send`` (``in_thread.run``).
"""

import os
import random
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import assert_never

from bedrockish.api.url import Address, Target
from bedrockish.api.wire import BY_COLUMN, NODES, Answered, Ask, Step, Told
from bedrockish.client.calls import Calls
from bedrockish.client.credentials import ClientCredentials
from bedrockish.client.discovery import members_of
from bedrockish.client.link_end import LIMITS, explain_end
from bedrockish.client.sansio.core import open_core
from bedrockish.client.sansio.effects import Dial, Effect, Finish, HangUp, Send
from bedrockish.client.sansio.transaction_steps import What
from bedrockish.common.forks import notice_fork, watch_forks
from bedrockish.common.keeper import Keeper
from bedrockish.common.pauses import monotonic
from bedrockish.errors import BedrockishError, ClientClosedError, UnavailableError, UnsupportedError
from bedrockish.local.thread_turn import TURN
from bedrockish_net.errors import NetError
from bedrockish_net.events import Hello
from bedrockish_net.socket_link import SocketLink

LEARN_S = 30.0  # how often a client in use asks for the members of the cluster
TICK_S = 1.0
LATE_S = 2.5  # after such a delay of the keeper, the silence of a link does not mean that its node is gone
KEEPER_READS = 0  # the value of ``_reader`` while the keeper reads
READ, WRITE = select.POLLIN | select.POLLERR | select.POLLHUP, select.POLLOUT


class _ResetIfInterrupted:
    """A context manager around a step: if an interrupt (Ctrl-C) ends the step half done, all links and calls are
    dropped.

    The lock is acquired outside, by the ``with`` statement: an interrupt in a method that acquires it would leave it
    locked.
    """

    __slots__ = ("_reset",)

    def __init__(self, reset: Callable[[], None]) -> None:
        self._reset = reset

    def __enter__(self) -> None:
        """Begin the step."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and not isinstance(error, BedrockishError):
            try:
                self._reset()
            except BaseException:  # the handler of another signal has raised
                self._reset()
                raise


class SocketDriver(Calls):
    """All links and calls of one client, for any number of threads.

    Why so large: One lock guards the links, the calls and the choice of the thread that reads for all.
    """

    def __init__(self, target: Target, token: bytes | None, credentials: ClientCredentials) -> None:
        self.target = target
        self._credentials = credentials
        self._is_inherited = False
        self._core = open_core(target, random.random, token)
        self._lock = threading.RLock()  # guards all fields below
        self._reset_if_interrupted = _ResetIfInterrupted(self._reset)
        self._links: dict[int, SocketLink] = {}
        self._dials: deque[Dial] = deque()  # links to open; a thread may open the first without the lock
        self._outcomes: dict[int, Answered | Told | BedrockishError] = {}
        self._waiting: dict[int, threading.Lock | None] = {}  # calls, each with the lock that wakes its thread
        self._member_call: int | None = None  # the call that asks for the members of the cluster
        self._next_learn_at = 0.0
        self._reader: int | None = None  # the call whose thread reads for all; None for no thread
        self._is_closed = False
        self._calls_made, self._calls_at_learn = 0, -1
        self._open_poll()
        watch_forks(self)

    def _open_poll(self) -> None:
        if not hasattr(select, "poll"):
            raise UnsupportedError(
                f"this client needs poll(), which Python lacks on {sys.platform}; use bedrockish.open_client or HTTP"
            )
        try:
            self._wake_read, self._wake_write = socket.socketpair()
        except OSError as error:
            raise UnavailableError(
                f"a client cannot be opened: {error.strerror}; close others, or raise the program's limit of files"
            ) from error
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._wake_file = self._wake_read.fileno()
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._polled: dict[int, tuple[int, int]] = {}  # link -> its socket's file number, and the events polled for

    def after_fork(self) -> None:
        """Forget all links, which belong to the parent process."""
        for link in self._links.values():
            link.abandon()
        if not self._is_closed:
            self._free()
            self._open_poll()
        self._lock, self._reset_if_interrupted = threading.RLock(), _ResetIfInterrupted(self._reset)
        self._core = self._core.for_child()
        for kept in (self._links, self._dials, self._outcomes, self._waiting):
            kept.clear()
        self._member_call, self._reader, self._is_inherited = None, None, True

    # --- calls; the names are those of ``Driver``, whose methods the client shares ---

    def _now(self) -> float:
        return monotonic()

    def _begin(self, what: What, timeout_s: float) -> int:
        notice_fork()
        with self._lock, self._reset_if_interrupted:
            if self._is_closed:
                raise ClientClosedError("this client is closed; open another")
            if self._is_inherited:
                KEEPER.add(self)
                self._is_inherited = False
            self._calls_made += not isinstance(what, Ask)
            if isinstance(what, Step) and what.prepared and self._reader is None:
                # Read first: if the node was restarted, the link has ended, and perhaps no thread has noticed this yet.
                # A COMMIT sent on the ended link would count as lost, although the new process can commit it.
                self._poll_links(0)
            number, effects = self._core.call(what, timeout_s, monotonic())
            self._waiting[number] = None
            try:
                self._perform(effects)
            except BaseException:  # Ctrl-C: no caller will know the number
                del self._waiting[number]
                raise
            if self._reader is not None:
                self._wake_reader()
            return number

    async def _wait(self, number: int) -> Answered | Told:
        try:
            outcome = self._await(number)
        except BaseException:
            with self._lock, self._reset_if_interrupted:
                self._cancel(number)
                if self._reader in (None, number):  # an interrupt may come between any two steps of ``_await``
                    self._stop_reading()
            raise
        if isinstance(outcome, BedrockishError):
            try:
                raise outcome
            finally:
                del outcome  # a frame that refers to its error forms a cycle, which would keep the call's parameters
        return outcome

    def _await(self, number: int) -> Answered | Told | BedrockishError:
        """Wait for the outcome of a call, and return it; read for all threads, unless another thread does so."""
        TURN.leave()  # otherwise threads that wait for the turn would wait some milliseconds
        while True:
            with self._lock:
                if number in self._outcomes:
                    del self._waiting[number]
                    return self._outcomes.pop(number)
                if number not in self._waiting:
                    raise ClientClosedError("the client was closed during the call")
                waker = threading.Lock() if self._reader is not None else None
                if waker is None:
                    self._reader = number
                else:
                    self._waiting[number] = waker
                    waker.acquire()
            if waker is not None:
                waker.acquire()  # released with the outcome, or when the reading thread stops
                continue
            try:
                self._read_until(number)
            finally:
                self._stop_reading()

    def _stop_reading(self) -> None:
        with self._lock:
            self._reader = None
            if self._is_closed:
                self._free()
            for number, waker in self._waiting.items():
                if waker is not None and number not in self._outcomes:
                    self._wake_caller(number)
                    return

    def _wake_caller(self, number: int) -> None:
        waker = self._waiting.get(number)
        if waker is not None:
            self._waiting[number] = None
            waker.release()

    def _cancel(self, number: int) -> None:
        """Forget a call whose thread no longer waits."""
        notice_fork()
        with self._lock, self._reset_if_interrupted:
            self._waiting.pop(number, None)
            self._outcomes.pop(number, None)
            self._perform(self._core.cancel(number, monotonic()))

    def _notify(self, what: What, timeout_s: float) -> None:
        """Make a call without waiting for its answer."""
        notice_fork()
        with self._lock, self._reset_if_interrupted:
            if not self._is_closed:
                self._perform(self._core.call(what, timeout_s, monotonic())[1])

    def leave_node(self, towards: Sequence[Address] = ()) -> None:
        """Move to another node, if there is one; to one of ``towards``, if any are given."""
        notice_fork()
        with self._lock, self._reset_if_interrupted:
            if not self._is_closed:
                self._perform(self._core.leave(monotonic(), towards))

    def interrupt(self) -> None:
        """End all calls for which other threads wait.

        Their nodes stop them, unless voters may have them. The error of each waiting caller says whether its call may
        have been committed.
        """
        notice_fork()
        with self._lock, self._reset_if_interrupted:
            if not self._is_closed:
                self._perform(self._core.interrupt(monotonic()))
                self._wake_reader()

    # --- reading ---

    def _read_until(self, number: int) -> None:
        """Send and receive until the outcome of a call arrives. Only one thread may do this at a time."""
        while True:
            with self._lock:
                if number in self._outcomes or number not in self._waiting:
                    return
                dial = self._dials[0] if self._dials else None
                wait_ms = 0.0 if dial is not None else self._wait_ms()
            if dial is not None:
                self._dial(dial)
            else:
                self._poll_links(wait_ms)

    def _wait_ms(self) -> float:
        """Return the milliseconds until the next deadline of the core or a link, at most ``TICK_S``."""
        now = monotonic()
        wake_at = min(self._core.deadline(), now + TICK_S)
        for link in self._links.values():
            wake_at = min(wake_at, link.wake_at())
        return 1_000 * max(0.0, wake_at - now)

    def _poll_links(self, wait_ms: float) -> None:
        """Wait for the sockets; write unsent bytes, and pass the received messages to the core."""
        found = dict(self._poll.poll(wait_ms + 0.5 if wait_ms else 0))
        with self._lock, self._reset_if_interrupted:
            for number, link in list(self._links.items()):
                file, _ = self._polled.get(number, (-1, 0))
                ready_for = found.get(file, 0)
                if ready_for & WRITE:
                    link.flush()
                if ready_for & READ:
                    for payload in link.receive():
                        self._perform(self._core.received(number, payload, monotonic()))
                if not ready_for:
                    link.tend(monotonic())
            if self._wake_file in found:
                with suppress(BlockingIOError):
                    self._wake_read.recv(4096)
            self._update_polled()
            if not found:
                self._perform(self._core.woken(monotonic()))

    def _update_polled(self) -> None:
        """Report ended links to the core; poll open links for reading and, if they have unsent bytes, for writing."""
        for number, link in list(self._links.items()):
            if link.over is not None:
                self._drop(number)
                self._perform(self._core.closed(number, explain_end(link.over), monotonic()))
        for number, link in self._links.items():
            wanted = select.POLLIN | (select.POLLOUT if link.has_unsent else 0)
            if self._polled.get(number, (-1, 0))[1] != wanted:
                self._poll.register(link, wanted)
                self._polled[number] = link.fileno(), wanted

    def _drop(self, number: int) -> None:
        link = self._links.pop(number, None)
        file, _ = self._polled.pop(number, (-1, 0))
        if file >= 0:
            self._poll.unregister(file)
        if link is not None:
            link.close()

    def _dial(self, dial: Dial) -> None:
        """Open a link, without the lock, so that other threads can make calls during the handshake.

        If an interrupt ends the handshake, the dial stays in ``_dials``, and the next reading thread opens the link.
        """
        hello = Hello(f"client-{os.getpid()}", self.target.cluster, "client", info={BY_COLUMN: True})
        link: SocketLink | None = None
        try:
            link = self._credentials.dial_socket(dial.address, hello, dial.timeout_s, LIMITS)
            error: BedrockishError | None = None
        except (NetError, OSError) as why:
            error = explain_end(why)
        with self._lock, self._reset_if_interrupted:
            now = monotonic()
            if dial not in self._dials:  # the core has hung up
                if link is not None:
                    link.close()
                return
            self._dials.remove(dial)
            if link is None:
                assert error is not None
                self._perform(self._core.closed(dial.link, error, now))
                return
            self._links[dial.link] = link
            self._perform(self._core.opened(dial.link, link.remote.info, now))
            self._update_polled()

    def _wake_reader(self) -> None:
        """Wake the thread that reads, so that it checks dials, deadlines and outcomes again."""
        with suppress(BlockingIOError, OSError):
            self._wake_write.send(b"!")

    # --- effects ---

    def _reset(self) -> None:
        """Give up all links and calls, as if the links had been lost; keep the session."""
        for number in list(self._links):
            self._drop(number)
        self._dials.clear()
        lost = ClientClosedError("the call was lost when another call of this connection was interrupted")
        for number in list(self._waiting):
            self._outcomes.setdefault(number, lost)
            self._wake_caller(number)
        self._core = self._core.after_reset()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(number, payload):
                    link = self._links[number]
                    link.send(payload)
                    if link.has_unsent or link.over is not None:
                        self._flush_later(number)
                case Finish(call, outcome):
                    self._finish(call, outcome)
                case Dial():
                    self._dials.append(effect)
                case HangUp(number):
                    self._close_link(number)
                case _:
                    assert_never(effect)

    def _close_link(self, number: int) -> None:
        if number in self._links:
            self._drop(number)
        else:
            self._dials = deque(dial for dial in self._dials if dial.link != number)

    def _flush_later(self, number: int) -> None:
        """Have the reading thread flush a link or report its end, because this step of the core is not yet complete."""
        link = self._links[number]
        if number in self._polled and link.over is None:
            self._poll.register(link, select.POLLIN | select.POLLOUT)
            self._polled[number] = link.fileno(), select.POLLIN | select.POLLOUT
        self._wake_reader()

    def _finish(self, call: int, outcome: Answered | Told | BedrockishError) -> None:
        if call == self._member_call:
            self._member_call = None
            if isinstance(outcome, Told):
                self._core.route.learn(members_of(outcome.value), monotonic())
        elif call in self._waiting:
            self._outcomes[call] = outcome
            self._wake_caller(call)

    # --- while no thread waits ---

    def _maintain(self, now: float, *, late: bool) -> None:
        """Answer the nodes' pings while no thread waits, and ask for the members of the cluster every ``LEARN_S``."""
        with self._lock:
            if self._reader is not None or self._is_closed:
                return
            self._reader = KEEPER_READS
        try:
            with self._lock, self._reset_if_interrupted:
                if late:
                    for link in self._links.values():
                        link.excuse(now)
                self._learn(now)
            self._poll_links(0)
        finally:
            self._stop_reading()

    def learn(self) -> None:
        """Ask for the members of the cluster without waiting for the answer."""
        with self._lock, self._reset_if_interrupted:
            self._learn(monotonic())

    def _learn(self, now: float) -> None:
        is_due = self.target.discover and now >= self._next_learn_at and self._calls_made != self._calls_at_learn
        if is_due and self._links:
            self._next_learn_at, self._calls_at_learn = now + LEARN_S, self._calls_made
            if self._member_call is None:
                self._member_call, effects = self._core.call(Ask(0, NODES), LEARN_S, now)
                self._perform(effects)

    def _close(self) -> None:
        notice_fork()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._perform(self._core.close())
            for number in list(self._links):
                self._drop(number)
            for number in list(self._waiting):
                self._outcomes.setdefault(number, ClientClosedError("the client was closed during the call"))
                self._wake_caller(number)
            self._wake_reader()
            if self._reader is None:
                self._free()

    def _free(self) -> None:
        """Close the sockets that wake the thread that reads, because no thread will read any more."""
        self._wake_read.close()
        self._wake_write.close()


def _maintain(client: SocketDriver, elapsed_s: float) -> None:
    if not client.is_closed:
        with suppress(BedrockishError):
            client._maintain(monotonic(), late=elapsed_s > LATE_S)


KEEPER = Keeper("bedrockish-keeper", TICK_S, _maintain)
