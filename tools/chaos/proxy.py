"""A controlled network between real nodes: a TCP proxy for each direction of each pair.

A node dials each peer. So the proxy of a pair carries the messages from the first node to the second, and in the other
direction only keep-alive frames. Each proxy can be cut (connections end, new ones end at once), held (messages
are not delivered, but connections stay) or slow.

A *trap* inspects the messages and holds the line from the first matching message on. So a test can stop a node between
two steps of the protocol.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import trio

from bedrockish.core.protocol.messages import Message, decode
from bedrockish_net.frame import FrameKind, FrameReader, encode_frame
from bedrockish_net.limits import LinkLimits

CHUNK = 1 << 16
QUEUE_MAX = 4096  # frames under way in one connection; the reader waits when there are more
Said = tuple[float, FrameKind, bytes]  # the time at which a frame came, its kind and its bytes
BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class Line:
    """The link that carries one node's messages to another."""

    def __init__(self, source: str, target: str, target_port: int) -> None:
        self.source = source
        self.target = target
        self.target_port = target_port
        self.port = 0  # the port of this line, to which the sender connects
        self.caught = trio.Event()  # set when ``set_trap`` has stopped the line
        self._listeners: list[trio.SocketListener] = []
        self._connections: set[trio.CancelScope] = set()
        self._cut = False
        self._held = False
        self._delay_s = 0.0
        self._trap: Callable[[Message], bool] | None = None
        self._changed = trio.Event()

    async def open(self) -> None:
        """Open a port; connections wait there until ``run`` accepts them."""
        self._listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = self._listeners[0].socket.getsockname()[1]

    async def run(self) -> None:
        """Carry messages until cancelled."""
        await trio.serve_listeners(self._carry, self._listeners)

    # --- faults ---

    def cut(self) -> None:
        """End all connections, drop the bytes on the way, and refuse new connections."""
        self._cut = True
        for scope in list(self._connections):
            scope.cancel()
        self._tell()

    def hold(self) -> None:
        """Stop delivering; keep the messages that arrive until ``heal``."""
        self._held = True
        self._tell()

    def slow(self, seconds: float) -> None:
        """Deliver each message ``seconds`` after its arrival, in order."""
        self._delay_s = seconds
        self._tell()

    def set_trap(self, trap: Callable[[Message], bool]) -> None:
        """Hold the line before the first message for which ``trap`` returns True."""
        self.caught = trio.Event()
        self._trap = trap

    def heal(self) -> None:
        """End all faults and the trap of the line, and deliver the messages that it has kept."""
        self._cut = self._held = False
        self._delay_s = 0.0
        self._trap = None
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- forwarding ---

    async def _carry(self, stream: trio.SocketStream) -> None:
        out: trio.SocketStream | None = None
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                if not self._cut:
                    out = await trio.open_tcp_stream("127.0.0.1", self.target_port)
                    await self._join(stream, out)
            except OSError:
                pass  # the target does not listen: the sender sees its connection end
            finally:
                self._connections.discard(scope)
                for one in (stream, out):
                    if one is not None:
                        one.socket.close()  # not awaited, because this task may be cancelled

    async def _join(self, stream: trio.SocketStream, out: trio.SocketStream) -> None:
        give, take = trio.open_memory_channel[Said](QUEUE_MAX)
        async with trio.open_nursery() as nursery:

            async def whole(part: Awaitable[None]) -> None:
                await part
                nursery.cancel_scope.cancel()  # one direction has ended, so end the other one, too

            nursery.start_soon(self._take_frames, stream, give)
            nursery.start_soon(whole, self._deliver(take, out))
            nursery.start_soon(whole, self._answer(out, stream))

    async def _take_frames(self, stream: trio.SocketStream, give: trio.MemorySendChannel[Said]) -> None:
        reader = FrameReader(LinkLimits().frame_bytes_max)
        async with give:
            while data := await _receive(stream):
                reader.feed(data)
                while (frame := reader.next_frame()) is not None:
                    await give.send((trio.current_time(), *frame))

    async def _deliver(self, take: trio.MemoryReceiveChannel[Said], out: trio.SocketStream) -> None:
        async for said_at, kind, payload in take:
            # The line is held here, and not where frames are read, so that earlier messages have been delivered.
            if self._trap is not None and kind is FrameKind.DATA and self._trap(decode(payload)):
                self._trap = None
                self.hold()
                self.caught.set()
            while self._held or trio.current_time() < said_at + self._delay_s:
                with trio.move_on_at(trio.current_time() + 60 if self._held else said_at + self._delay_s):
                    await self._changed.wait()
            try:
                await out.send_all(encode_frame(kind, payload))
            except BROKEN:
                return

    async def _answer(self, out: trio.SocketStream, stream: trio.SocketStream) -> None:
        while data := await _receive(out):
            try:
                await stream.send_all(data)
            except BROKEN:
                return


async def _receive(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some(CHUNK))
    except BROKEN:
        return b""


class Network:
    """The proxies between a set of nodes, one for each direction of each pair."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self.names = tuple(ports)
        self.lines = {(a, b): Line(a, b, ports[b]) for a in ports for b in ports if a != b}

    async def open(self) -> None:
        """Take a port for each line."""
        for line in self.lines.values():
            await line.open()

    async def run(self) -> None:
        """Carry messages until cancelled."""
        async with trio.open_nursery() as nursery:
            for line in self.lines.values():
                nursery.start_soon(line.run)

    def between(self, some: Iterable[str], others: Iterable[str]) -> list[Line]:
        """Return the network lines between the nodes of two groups, in both directions."""
        left, right = set(some), set(others)
        return [line for (a, b), line in self.lines.items() if (a in left and b in right) or (a in right and b in left)]

    def from_node(self, name: str) -> list[Line]:
        return [line for (a, _), line in self.lines.items() if a == name]

    def apart(self, *groups: Iterable[str]) -> list[Line]:
        """Return the lines between nodes that are in no common group; a node may be in several."""
        sets = [set(group) for group in groups]
        return [line for (a, b), line in self.lines.items() if not any({a, b} <= group for group in sets)]

    def heal(self) -> None:
        """End the faults of all lines."""
        for line in self.lines.values():
            line.heal()

    @contextmanager
    def cut(self, lines: Iterable[Line]) -> Iterator[None]:
        """Cut lines inside the block, and heal them at its end."""
        chosen = list(lines)
        for line in chosen:
            line.cut()
        try:
            yield
        finally:
            for line in chosen:
                line.heal()
