"""Link: a connection on a Trio stream.

``run()`` has three small tasks: one reads, one writes, one sends Pings. A node's links on plain sockets are read by its
``ReadLoop`` instead of a task. Every end of a link (a GOODBYE from either end, a broken stream, a protocol error,
silence, a full outbox, cancellation) calls ``_end`` with a code and a reason, and the first call counts.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

import trio

from bedrockish_net.connection import Connection
from bedrockish_net.errors import Code, LinkClosedError, RemoteProtocolError
from bedrockish_net.events import Closed, Data, Event, Goodbye, Hello, Ping, Pong
from bedrockish_net.handshake import BROKEN, hang_up, host_of
from bedrockish_net.inflow import Inflow
from bedrockish_net.limits import LinkLimits
from bedrockish_net.link_texts import READ_BYTES, READ_FIRST_BYTES, error_text
from bedrockish_net.read_loop import ReadLoop

MESSAGE_OVERHEAD_BYTES = 64  # memory of an empty message
SLICE_BYTES = 256 << 10  # a long message is sent in slices; each accepted slice is a sign of life of the other end


class Link:
    """A link after the handshake, which carries messages in both directions, in order, until it ends.

    Create a link from the result of ``handshake.dial`` or ``handshake.accept``, then start ``run`` in a nursery, which
    moves the messages.

    Why so large: Both directions of a socket end together, and throttle each other. A layer between them would cost a
    call for each message.
    """

    def __init__(self, stream: trio.abc.Stream, connection: Connection, limits: LinkLimits) -> None:
        assert connection.remote is not None
        assert connection.is_open
        self.remote: Hello = connection.remote  # the HELLO of the other end
        self.local: Hello = connection.local  # our HELLO
        self.stream = stream
        # A plain socket can be written to outside a task as long as the kernel's buffer has room.
        self._fd = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else -1
        self._is_torn = False  # whether the kernel accepted only a part of the last write
        self._on_messages: Callable[[list[bytes]], None] | None = None
        # The exception of the callback for messages that has ended the link; only if a loop reads the link.
        self.fault: Exception | None = None
        self._inflow: Inflow | None = None
        self._incomplete_bytes = 0  # bytes of an incomplete message, as ``_inflow`` knows them
        self._read_loop: ReadLoop | None = None
        self._is_watched = False  # whether the loop reads the socket now
        self._most = READ_FIRST_BYTES  # size of the next read
        self._is_paused = False
        self._connection = connection
        self._limits = limits
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._outbox: list[bytes | tuple[bytes, ...]] = []  # a long message is a tuple of its parts
        self._bulk: deque[bytes] = deque()  # frames that are sent after all others
        self._outbox_bytes = 0  # all unsent bytes, including those that send_all is sending
        self._moved = 0.0  # when the other end last accepted bytes, or bytes began to wait
        self._is_sending = False
        self._is_finishing = False
        self._is_hanging_up = False
        self._heard = trio.current_time()
        self._over: LinkClosedError | None = None
        self._last_bytes = b""
        self._scope: trio.CancelScope | None = None
        self._gone = trio.Event()
        self._consumers = trio.lowlevel.ParkingLot()
        self._reader = trio.lowlevel.ParkingLot()
        self._senders = trio.lowlevel.ParkingLot()
        self._writer = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<Link {self.local.node} to {self.remote.role} {self.remote.node}: {self._over or 'open'}>"

    @property
    def host(self) -> str:
        """The address of the other end, without its port; empty if it has none."""
        return host_of(self.stream)

    @property
    def waiting_bytes(self) -> int:
        """The number of unsent bytes."""
        return self._outbox_bytes

    @property
    def stuck_seconds(self) -> float:
        """The time for which unsent bytes have waited and the other end has accepted none; 0 without unsent bytes."""
        return trio.current_time() - self._moved if self._outbox_bytes else 0.0

    @property
    def silent_seconds(self) -> float:
        """The time since the other end last sent bytes of an incomplete message; 0 without such a message."""
        is_due = self._connection.half_bytes and not self._is_held_up()
        return trio.current_time() - self._heard if is_due else 0.0

    @property
    def closed(self) -> LinkClosedError | None:
        """The reason why the link has ended; None while it is open."""
        return self._over

    async def run(self) -> None:
        """Move messages until the link ends, then close the stream. Raise no error; ``closed`` has the reason."""
        assert self._scope is None, "run() may be started once"
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                if self._over is not None:
                    return
                if self._read_loop is None:
                    nursery.start_soon(self._read)
                else:
                    self._take_rest()  # bytes that came together with the HELLO
                    self.read_on()
                nursery.start_soon(self._write)
                nursery.start_soon(self._keep_alive)
        finally:
            self._end(Code.SHUTDOWN, f"{self.local.node} is stopping")
            self._outbox = []  # free the memory, even if the link is still referenced
            self._bulk.clear()
            self._connection.forget()
            self._note_incomplete(0)
            await self._close_stream()

    def send_nowait(self, payload: bytes) -> None:
        """Send one message, or queue it if the kernel's buffer is full.

        Raises:
            LinkClosedError: the link has ended, or this message overflows the outbox, which ends the link.
            LocalProtocolError: the message is longer than a frame may be.
        """
        if self._over is not None or self._is_finishing:
            self._refuse()
        frame = self._connection.send_data(payload)
        if self._outbox_bytes:
            self._check_room(len(frame))
        self._queue(frame)

    def send_many_nowait(self, payloads: Iterable[bytes], *, bulk: bool = False) -> None:
        """Queue messages that are sent together; see ``send_nowait``.

        With ``bulk``, they are sent one by one, each when no other message waits; so messages that are queued later may
        be sent earlier.

        Raises:
            LinkClosedError: as ``send_nowait``.
            LocalProtocolError: as ``send_nowait``; no message was queued.
        """
        if self._over is not None or self._is_finishing:
            self._refuse()
        frames = [*map(self._connection.send_data, payloads)]
        data = b"" if bulk else b"".join(frames)
        size = sum(map(len, frames)) if bulk else len(data)
        self._check_room(size)
        if bulk:
            self._bulk.extend(frames)
            self._grow(size)
            self._writer.unpark_all()
        else:
            self._queue(data)

    def send_parts_nowait(self, parts: Sequence[bytes]) -> None:
        """Queue one message that is given in parts, without a copy of them all in one string; see ``send_nowait``.

        The errors are those of ``send_nowait``.
        """
        if self._over is not None or self._is_finishing:
            self._refuse()
        head = self._connection.send_data_head(sum(map(len, parts)))
        size = len(head) + sum(map(len, parts))
        self._check_room(size)
        self._outbox.append((head, *parts))
        self._grow(size)
        self._writer.unpark_all()

    async def send(self, payload: bytes) -> None:
        """Queue one message as soon as the outbox has room for it. If this is cancelled, the message was not queued.

        Raises:
            LinkClosedError: the link has ended.
            LocalProtocolError: the message is longer than a frame may be.
        """
        await self.wait_for_room(len(payload), self._limits.outbox_bytes_max // 2)
        self.send_nowait(payload)

    async def wait_for_room(self, size: int, most: int) -> None:
        """Wait until the outbox is empty, or with ``size`` further bytes has at most ``most``, or the link ends."""
        await trio.lowlevel.checkpoint()
        while not self._over and self._outbox_bytes and self._outbox_bytes + size > most:
            await self._senders.park()

    def deliver_to(self, on_messages: Callable[[list[bytes]], None]) -> None:
        """Pass messages to a callback as they are read, instead of queueing them for ``receive``.

        Messages in the queue are delivered at once. The callback must not block or raise.
        """
        self._on_messages = on_messages
        if self._inbox:
            on_messages(self._take_inbox())

    def read_by(self, loop: ReadLoop) -> None:
        """Have a loop read the socket instead of a task, if the stream is a plain socket. Call this before ``run``."""
        assert self._scope is None
        if self._fd >= 0:
            self._read_loop = loop

    def count_by(self, inflow: Inflow) -> None:
        """Account for incomplete messages with ``inflow``, which may pause reading in favour of other connections."""
        self._inflow = inflow

    def pause(self) -> None:
        """Stop reading until ``resume``, so that the other end has to wait."""
        self._is_paused = True

    def resume(self) -> None:
        """Resume reading after ``pause``."""
        if self._is_paused:
            self._is_paused = False
            self.read_on()

    async def wait_closed(self) -> LinkClosedError:
        """Wait until the link ends, and return the reason."""
        while self._over is None:
            await self._consumers.park()
        return self._over

    def _deliver(self, messages: list[bytes]) -> None:
        """Deliver messages to the callback, or queue them for ``receive``."""
        if self._on_messages is not None:
            self._on_messages(messages)
            return
        self._inbox.extend(messages)
        self._inbox_bytes += sum(map(len, messages)) + MESSAGE_OVERHEAD_BYTES * len(messages)
        self._consumers.unpark_all()

    def _take_inbox(self) -> list[bytes]:
        batch = list(self._inbox)
        self._inbox.clear()
        self._inbox_bytes = 0
        return batch

    async def receive(self) -> bytes:
        """Return the next message, waiting for it. No message is lost if this is cancelled.

        Raises:
            LinkClosedError: the link has ended, and all messages that arrived before were returned.
        """
        await self._wait_for_message()
        payload = self._inbox.popleft()
        self._inbox_bytes -= len(payload) + MESSAGE_OVERHEAD_BYTES
        self.read_on()
        return payload

    def drop(self, code: str, reason: str) -> None:
        """End the link now, with a GOODBYE if possible; queued messages are lost."""
        self._end(code, reason)

    async def aclose(self) -> None:
        """Send queued messages, send GOODBYE and close; each takes at most ``limits.goodbye_seconds``.

        If this is cancelled, queued messages are dropped.
        """
        self._is_finishing = True
        self._writer.unpark_all()
        try:
            if self._scope is not None:
                with trio.move_on_after(self._limits.goodbye_seconds):
                    await self._gone.wait()
        finally:
            self._end(Code.SHUTDOWN, f"{self.local.node} closed the link")
            if self._scope is None:  # only run() has a writer that sends the GOODBYE
                self._last_bytes = b"".join([*self._waiting(), *self._bulk]) + self._last_bytes
                self._outbox.clear()
                self._bulk.clear()
                await self._close_stream()
        with trio.CancelScope(shield=True):
            await self._gone.wait()

    async def _wait_for_message(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._inbox:
            if self._over is not None:
                raise LinkClosedError(self._over.code, self._over.reason)
            await self._consumers.park()

    def _refuse(self) -> NoReturn:
        if self._over is not None:
            raise LinkClosedError(self._over.code, self._over.reason)
        raise LinkClosedError(Code.SHUTDOWN, f"{self.local.node} is closing the link")

    def _check_room(self, size: int) -> None:
        """End the link if ``size`` more bytes would exceed the limit of the outbox."""
        if self._outbox_bytes and self._outbox_bytes + size > self._limits.outbox_bytes_max:
            self._end(
                Code.OVERFLOW, f"{self.remote.node} reads too slowly: {self._outbox_bytes} bytes are waiting for it"
            )
            self._refuse()

    def _queue(self, data: bytes) -> None:
        """Write bytes to the socket now, without waking a task, if no other bytes wait; queue the rest."""
        if not self._outbox and not self._is_sending and self._fd >= 0 and self._scope is not None:
            try:
                taken = os.write(self._fd, data)
            except OSError:
                taken = 0  # the buffer is full, or the stream is broken; the writer waits or ends the link
            if taken == len(data):
                return
            self._is_torn = taken > 0
            data = data[taken:]
        self._outbox.append(data)
        self._grow(len(data))
        self._writer.unpark_all()

    def _grow(self, size: int) -> None:
        if not self._outbox_bytes:
            self._moved = trio.current_time()
        self._outbox_bytes += size

    def _end(self, code: str, reason: str, last_bytes: bytes | None = None) -> None:
        """End the link, once; wake all waiting tasks, and have ``run`` close the stream."""
        if self._over is not None:
            return
        self._over = LinkClosedError(code, reason)
        if last_bytes is None and self._connection.is_open and code != Code.LOST:
            last_bytes = self._connection.send(Goodbye(code, reason))
        self._last_bytes = last_bytes or b""
        self._unwatch()
        for lot in (self._consumers, self._senders):
            lot.unpark_all()
        if self._scope is not None:
            self._scope.cancel()

    async def _close_stream(self) -> None:
        if self._is_hanging_up:  # run() and aclose() may both call this; the first call counts
            return
        self._is_hanging_up = True
        torn = self._is_sending or self._is_torn  # after half a frame, a GOODBYE would be read as the frame's rest
        await hang_up(self.stream, b"" if torn else self._last_bytes, self._limits.goodbye_seconds)
        self._gone.set()

    async def _write(self) -> None:
        while True:
            if not self._outbox and not self._bulk:
                if self._is_finishing:
                    self._end(Code.SHUTDOWN, f"{self.local.node} closed the link")
                    return
                await self._writer.park()
                continue
            parts = self._take_out() if self._outbox else (self._bulk.popleft(),)
            self._is_sending = True
            try:
                for part in parts:
                    for start in range(0, len(part), SLICE_BYTES):
                        piece = part[start : start + SLICE_BYTES]
                        await self.stream.send_all(piece)
                        self._count_accepted(len(piece))
            except BROKEN as error:
                self._end(Code.LOST, f"the stream to {self.remote.node} broke: {error_text(error)}")
                return
            finally:
                parts = (part := b"",)  # else an error's traceback would keep the sent bytes in memory
            self._is_sending = self._is_torn = False

    def _waiting(self) -> Iterable[bytes]:
        return itertools.chain.from_iterable(one if isinstance(one, tuple) else (one,) for one in self._outbox)

    def _take_out(self) -> tuple[bytes, ...]:
        """Remove and return the next bytes to send: the parts of a long message, or all messages before a long one."""
        outbox = self._outbox
        first = outbox[0]
        if isinstance(first, tuple):
            self._outbox = outbox[1:]
            return first
        whole = []
        for one in outbox:
            if isinstance(one, tuple):
                break
            whole.append(one)
        self._outbox = outbox[len(whole) :]
        return (b"".join(whole),)

    def _count_accepted(self, size: int) -> None:
        self._outbox_bytes -= size
        self._moved = trio.current_time()
        self._senders.unpark_all()

    async def _receive(self, most: int) -> bytes:
        """Return the next bytes, up to ``most``; empty at the end of the stream.

        The socket is read only when it is readable. A read by the stream would first try without waiting, which nearly
        always fails.
        """
        if self._fd < 0:
            return bytes(await self.stream.receive_some(most))
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            if self._over is not None:  # the stream may be closed, and its descriptor reused
                raise trio.ClosedResourceError
            with suppress(BlockingIOError):
                return os.read(self._fd, most)

    async def _read(self) -> None:
        self._take_rest()  # bytes that came together with the HELLO
        while self._over is None:
            while self._is_held_up():
                await self._reader.park()
                self._heard = trio.current_time()  # silence counts from now, because this end did not read before
            try:
                data = await self._receive(self._most)
            except BROKEN as error:
                self._broke(error)
                return
            self._take_read(data, trio.current_time())

    def read_on(self) -> None:
        """Resume reading, if the link is open and ``_is_held_up`` is false."""
        if self._read_loop is None:
            self._reader.unpark_all()
        elif self._scope is not None and not (self._is_watched or self._over or self._is_held_up()):
            self._heard = trio.current_time()  # silence counts from now, because this end did not read before
            self._is_watched = True
            self._read_loop.add(self._fd, self._read_now)

    def _unwatch(self) -> None:
        if self._is_watched:
            assert self._read_loop is not None
            self._is_watched = False
            self._read_loop.remove(self._fd)

    def _read_now(self, now: float) -> None:
        """Read the available bytes; the loop calls this."""
        try:
            data = os.read(self._fd, self._most)
        except BlockingIOError:
            return
        except OSError as error:
            self._broke(error)
            return
        try:
            self._take_read(data, now)
        except Exception as error:
            self.fault = error
            self._end(Code.SHUTDOWN, f"{self.local.node} failed at a message of {self.remote.node}")
            raise

    def _take_read(self, data: bytes, now: float) -> None:
        """Process bytes that were read at the time ``now``."""
        self._heard = now
        self._most = READ_FIRST_BYTES if len(data) < self._most else READ_BYTES
        messages = self._connection.receive_messages(data)
        if messages:
            self._deliver(messages)
        if self._incomplete_bytes or self._connection.has_more:
            self._take_rest()
        elif self._is_paused or self._inbox_bytes:
            self._unwatch_if_held_up()

    def _take_rest(self) -> None:
        """Process the remaining events, and record the bytes of an incomplete message."""
        self._take_events()
        if self._inflow is not None:
            self._note_incomplete(self._connection.half_bytes)
        self._unwatch_if_held_up()

    def _unwatch_if_held_up(self) -> None:
        if self._is_watched and self._is_held_up():
            self._unwatch()

    def _note_incomplete(self, size: int) -> None:
        if self._inflow is not None and (size or self._incomplete_bytes):
            self._incomplete_bytes = size
            self._inflow.note(self, size)

    def _broke(self, error: BaseException) -> None:
        self._end(Code.LOST, f"the stream from {self.remote.node} broke: {error_text(error)}")

    def _is_held_up(self) -> bool:
        """Return whether this end has paused reading, so that the other end's silence is not its fault."""
        if self._is_paused or self._inbox_bytes > self._limits.inbox_bytes_max:
            return True
        return self._incomplete_bytes > 0 and self._inflow is not None and self._inflow.has_to_wait(self)

    def _take_events(self) -> None:
        """Process the events in order: deliver messages, and answer Pings."""
        messages: list[bytes] = []
        try:
            while (event := self._connection.next_event()) is not None:
                if type(event) is Data:
                    messages.append(event.payload)
                else:
                    self._take_control(event)
        except RemoteProtocolError as error:
            self._end(error.code, f"{self.remote.node} broke the protocol: {error}", error.answer)
        if messages:
            self._deliver(messages)

    def _take_control(self, event: Event) -> None:
        match event:
            case Ping() if self._over is None and not self._is_finishing:
                self._queue(self._connection.send(event.response()))
            case Goodbye(code, message):
                self._end(code, f"{self.remote.node} said goodbye: {message or code}", b"")
            case Closed():
                self._end(Code.LOST, f"{self.remote.node} hung up without a goodbye", b"")
            case Ping() | Pong() | Hello() | Data():
                pass  # a Pong only counts as a sign of life, which is recorded; a second HELLO is a protocol error

    async def _keep_alive(self) -> None:
        limits = self._limits
        while True:
            wake = trio.current_time() + limits.ping_seconds
            await trio.sleep_until(wake)
            now = trio.current_time()
            stalled = now - wake > limits.ping_seconds  # our event loop stood still, so received bytes may be unread
            if stalled or self._is_held_up():
                self._heard = now
            # A Ping queues behind other data, and a busy reader answers late. So accepted bytes are a sign of life,
            # too.
            if now - max(self._heard, self._moved) >= limits.silence_seconds:
                self._end(Code.TIMEOUT, f"{self.remote.node} was silent for {limits.silence_seconds:g} s")
                return
            if now - self._heard >= limits.ping_seconds and not self._outbox and not self._is_finishing:
                self._queue(self._connection.send(Ping()))
