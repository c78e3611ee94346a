"""Mesh: one node's links to all its peers, and its open door.

To each peer there is one link that we dialled, for sending only; what the peer sends comes over the link that it
dialled. So every node redials what it needs itself, and two nodes never have to agree which of two links is the one.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import trio

from net import handshake
from net.errors import Code, LinkClosedError, ListenError, NetError, RefusedError
from net.events import Hello
from net.handshake import Admits, address_text
from net.limits import Limits
from net.secret import Secret
from net.stream import Link

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 2.0
STRANGERS_MAX = 64

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PeerUp:
    """Our own link to a peer is open: what is sent now goes out."""

    node: str


@dataclass(frozen=True, slots=True)
class PeerDown:
    """Our own link to a peer is over: what is sent is dropped until the next ``PeerUp``."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of a peer, in the order in which it sent them."""

    node: str
    payloads: list[bytes]


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A peer refused our link; told once for each reason."""

    node: str
    code: str
    reason: str


MeshEvent = PeerUp | PeerDown | Received | TurnedAway
ClientHandler = Callable[[Link], Awaitable[None]]


class _Peer:
    """What the mesh knows of one peer."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.started = False
        self.scope = trio.CancelScope()  # of the task that dials
        self.hurry = trio.Event()  # it is known to be alive: do not wait with the next attempt
        self.outgoing: Link | None = None
        self.incoming: Link | None = None
        self.trouble = ""  # why the last attempt failed, told once


async def _no_clients(link: Link) -> None:
    link.drop(Code.REFUSED, f"{link.local.node} takes no clients here")


class Mesh:
    """The links of one node. Start it with ``await nursery.start(mesh.run)``; cancel that to stop it.

    Args:
        hello: who we are; ``to`` is filled in for each peer.
        peers: where each other member listens. An entry for ourselves is ignored.
        on_event: told of PeerUp, PeerDown, Received and TurnedAway, in order; must not block or raise.
        judge: shown the HELLO of each peer that dials us, a member by its name; raises RefusedError to turn it away.
        on_client: runs for each client, beside the running link; the link is closed when it returns. A
            LinkClosedError that it raises is taken as the client's leaving; anything else stops the mesh.
        host: address to listen on; None for all of this machine.
        port: port to listen on; 0 for a free one, see ``addresses``.
        draw: luck between 0 and 1, for the jitter of redialling.
        on_log: told, in words, of refusals and of peers that cannot be reached.
        limits: sizes and times of each link.
        strangers_max: how many accepted streams may be without HELLO; above it the oldest is closed.
        dial_context: TLS for links that we dial.
        listen_context: TLS for links that we accept.
        secret: what all peers must know.
        admit: shown the stream and the HELLO of each who comes; raises RefusedError to turn it away.
    """

    def __init__(
        self,
        hello: Hello,
        peers: Mapping[str, Address],
        *,
        on_event: Callable[[MeshEvent], None],
        draw: Callable[[], float],
        on_client: ClientHandler = _no_clients,
        judge: Callable[[Hello], None] = lambda _: None,
        host: str | None = None,
        port: int = 0,
        on_log: Callable[[str], None] = lambda _: None,
        limits: Limits | None = None,
        strangers_max: int = STRANGERS_MAX,
        dial_context: ssl.SSLContext | None = None,
        listen_context: ssl.SSLContext | None = None,
        secret: Secret | None = None,
        admit: Admits | None = None,
    ) -> None:
        self.hello = hello
        self.addresses: list[Address] = []
        self._peers = {node: _Peer(address) for node, address in peers.items() if node != hello.node}
        self._on_event = on_event
        self._on_client = on_client
        self._judge_peer = judge
        self._on_log = on_log
        self._draw = draw
        self._host = host
        self._port = port
        self._limits = limits or Limits()
        self._strangers_max = strangers_max
        self._strangers: dict[int, trio.CancelScope] = {}  # oldest first
        self._stranger_count = 0
        self._dial_context = dial_context
        self._listen_context = listen_context
        self._secret, self._admit_caller = secret, admit
        self._nursery: trio.Nursery | None = None

    @property
    def up(self) -> frozenset[str]:
        """The peers that ``send`` reaches now."""
        return frozenset(node for node, peer in self._peers.items() if peer.outgoing is not None)

    @property
    def peers(self) -> dict[str, Address]:
        """Where each peer listens."""
        return {node: peer.address for node, peer in self._peers.items()}

    def send(self, node: str, payload: bytes) -> bool:
        """Queue one message to a peer, without waiting; return whether there was a link to queue it on.

        True promises nothing: the link may break before the message arrives.

        Raises:
            LocalProtocolError: the message is longer than a frame may be.
        """
        return self.send_many(node, (payload,))

    def send_many(self, node: str, payloads: Iterable[bytes]) -> bool:
        """Queue messages to a peer that leave together; see ``send``.

        Raises:
            LocalProtocolError: one is longer than a frame may be; none was queued.
        """
        peer = self._peers.get(node)
        if peer is None or peer.outgoing is None:
            return False
        try:
            peer.outgoing.send_many_nowait(payloads)
        except LinkClosedError:
            return False
        return True

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Change who belongs to the mesh. Links to and from nodes that left are closed; unchanged ones stay."""
        wanted = {node: address for node, address in peers.items() if node != self.hello.node}
        for node, peer in list(self._peers.items()):
            if wanted.get(node) == peer.address:
                continue
            moved = node in wanted
            reason = f"{node} moved to {address_text(*wanted[node])}" if moved else f"{node} is no longer a member"
            del self._peers[node]
            for link in (peer.outgoing, None if moved else peer.incoming):
                if link is not None:
                    link.drop(Code.SHUTDOWN if moved else Code.UNKNOWN_MEMBER, reason)
            was_up, peer.outgoing = peer.outgoing is not None, None
            peer.scope.cancel()
            if was_up:
                self._on_event(PeerDown(node, reason))
            if moved:
                self._peers[node] = _Peer(wanted[node])
                self._peers[node].incoming = peer.incoming
        added = [node for node in wanted if node not in self._peers]
        self._peers.update({node: _Peer(wanted[node]) for node in added})
        self._start_dialling()

    async def run(self, *, task_status: trio.TaskStatus[list[Address]] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, dial and serve until cancelled; says GOODBYE to everyone on the way out.

        Raises:
            ListenError: the address cannot be listened on.
        """
        listeners = await self._listen()
        self.addresses = [listener.socket.getsockname()[:2] for listener in listeners]
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(trio.serve_listeners, self._welcome, listeners)
            self._start_dialling()
            task_status.started(self.addresses)

    async def _listen(self) -> list[trio.SocketListener]:
        where = address_text(self._host or "*", self._port)
        try:
            return await trio.open_tcp_listeners(self._port, host=self._host)
        except socket.gaierror as error:
            raise ListenError(f"cannot listen on {where}: the name is unknown here; give an address instead") from error
        except OverflowError as error:
            raise ListenError(f"cannot listen on {where}: a port is a number from 0 to 65535") from error
        except OSError as error:
            raise ListenError(
                f"cannot listen on {where}: {error.strerror or error}; stop the program that has it "
                f"(find it with: ss -ltnp 'sport = :{self._port}'), or choose another host or port"
            ) from error

    # --- dialling

    def _start_dialling(self) -> None:
        if self._nursery is None:
            return
        for node, peer in self._peers.items():
            if not peer.started:
                peer.started = True
                self._nursery.start_soon(self._keep_dialling, node, peer)

    async def _keep_dialling(self, node: str, peer: _Peer) -> None:
        """Keep our link to one peer open for as long as the peer is a member."""
        delay = RETRY_SECONDS_MIN
        with peer.scope:
            while True:
                began = trio.current_time()
                peer.hurry = trio.Event()  # from here on: a peer that calls during our attempt counts too
                link = await self._dial(node, peer)
                if link is not None:
                    await self._hold(node, peer, link)
                    if trio.current_time() - began > RETRY_SECONDS_MAX:  # one that works, not one that is thrown out
                        delay = RETRY_SECONDS_MIN
                    peer.hurry = trio.Event()
                with trio.move_on_after(delay * (0.5 + self._draw() / 2)):
                    await peer.hurry.wait()
                delay = min(2 * delay, RETRY_SECONDS_MAX)

    async def _dial(self, node: str, peer: _Peer) -> Link | None:
        host, port = peer.address
        try:
            hello, limits = replace(self.hello, to=node), self._limits
            shaken = await handshake.dial(
                host, port, hello, limits.hello_seconds, limits, self._dial_context, self._secret
            )
        except NetError as error:
            trouble = f"no link to {node}: {error}"
            if trouble != peer.trouble:  # said once, not at every attempt
                peer.trouble = trouble
                self._on_log(trouble)
                if isinstance(error, RefusedError):
                    self._on_event(TurnedAway(node, error.code, error.message))
            return None
        peer.trouble = ""
        return Link(*shaken, limits)

    async def _hold(self, node: str, peer: _Peer, link: Link) -> None:
        """Offer an open link for sending until it is over."""
        peer.outgoing = link
        self._on_event(PeerUp(node))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            with suppress(LinkClosedError):
                await link.receive()
                link.drop(Code.UNEXPECTED, f"{node} talks on the link that is ours to talk on")
        if peer.outgoing is link:  # else set_peers has told it already
            peer.outgoing = None
            self._on_event(PeerDown(node, str(link.closed)))

    # --- the open door

    async def _welcome(self, stream: trio.SocketStream) -> None:
        """Find out who has come; a stranger costs us this task, and at most one HELLO of memory and time."""
        link = None
        caller = _caller(stream)
        with trio.CancelScope() as scope:
            number = self._admit(scope)
            try:
                shaken = await handshake.accept(
                    stream,
                    self.hello,
                    self._judge,
                    self._limits,
                    self._listen_context,
                    self._secret,
                    self._admit_caller,
                )
                link = Link(*shaken, self._limits)
            except NetError as error:
                self._on_log(f"refused {caller}: {error}")
            finally:
                self._strangers.pop(number, None)
        if link is None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            if link.remote.role == "peer":
                await self._listen_to(link, caller)
            else:
                try:
                    await self._on_client(link)
                except* LinkClosedError:
                    pass  # a client that hangs up is nothing special
                finally:
                    await link.aclose()

    def _admit(self, scope: trio.CancelScope) -> int:
        """Count one more stranger; the oldest has had the longest time for its HELLO, so it makes room."""
        self._stranger_count += 1
        self._strangers[self._stranger_count] = scope
        if len(self._strangers) > self._strangers_max:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).cancel()
            self._on_log(f"more than {self._strangers_max} connections without HELLO; closed the oldest")
        return self._stranger_count

    def _judge(self, remote: Hello) -> Hello:
        if remote.role == "peer" and remote.node not in self._peers:
            known = ", ".join(sorted([*self._peers, self.hello.node]))
            raise RefusedError(
                Code.UNKNOWN_MEMBER, f"{remote.node!r} is not a member of {self.hello.cluster!r} here; members: {known}"
            )
        if remote.role == "peer":
            self._judge_peer(remote)
        return replace(self.hello, to=remote.node)

    async def _listen_to(self, link: Link, caller: str) -> None:
        """Pass on what a peer says."""
        node = link.remote.node
        peer = self._peers.get(node)
        if peer is None:  # it left while it shook hands
            link.drop(Code.UNKNOWN_MEMBER, f"{node} is no longer a member")
            return
        if peer.incoming is not None:
            peer.incoming.drop(Code.REPLACED, f"{node} opened a newer link")
            self._on_log(f"{node} opened a second link from {caller}; the first is closed")
        peer.incoming = link
        peer.hurry.set()

        def take(payloads: list[bytes]) -> None:
            if self._is_incoming(node, link):
                self._on_event(Received(node, payloads))

        link.deliver_to(take)
        await link.wait_closed()
        if self._is_incoming(node, link):
            self._peers[node].incoming = None

    def _is_incoming(self, node: str, link: Link) -> bool:
        """Whether this is still the link on which a member talks to us: not replaced, and the member not removed."""
        peer = self._peers.get(node)
        return peer is not None and peer.incoming is link


def _caller(stream: trio.SocketStream) -> str:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "a caller that is gone"
    return address_text(host, port)
