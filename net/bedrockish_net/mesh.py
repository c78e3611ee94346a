"""The mesh: a node's links to all its peers, and its listener for peers and clients.

A node dials one link to each peer and only sends on it; the peer sends on the link that it has dialled itself. So each
node redials the links that it needs, and two nodes never have to agree on which of two links to keep.
"""

import math
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from bedrockish_net import handshake
from bedrockish_net.connection_limits import ConnectionLimits
from bedrockish_net.errors import Code, LinkClosedError, ListenError, NetError, RefusedError
from bedrockish_net.events import Hello
from bedrockish_net.handshake import Admits, Trusts
from bedrockish_net.inflow import Inflow
from bedrockish_net.limits import LinkLimits
from bedrockish_net.link_texts import address_text
from bedrockish_net.listening import LACKING, open_listeners
from bedrockish_net.read_loop import Courtesy, ReadLoop
from bedrockish_net.stream import Link
from bedrockish_net.tls import certificate_end

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 2.0
REFUSED_SECONDS_MIN = 1.0  # how long a peer's links are refused after its second malformed message
REFUSED_SECONDS_MAX = 60.0  # the longest refusal; each further malformed message doubles the time
INFLOW_BYTES = 256 << 20  # limit of incomplete messages of all clients, unless the caller sets another one
FORGIVEN_SECONDS = 600.0  # after this time without malformed messages, earlier ones no longer count

LOCAL = "(local)"  # the address of a program that uses the Unix socket

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PeerUp:
    """The link that we dialled to a peer is open; messages to the peer are sent from now on."""

    node: str


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The link that we dialled to a peer has ended; messages to the peer are dropped until the next ``PeerUp``."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of a peer, in the order in which it sent them."""

    node: str
    payloads: list[bytes]


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A peer refused our link. The event is emitted once for each reason."""

    node: str
    code: str
    reason: str
    info: Mapping[str, Any] = field(default_factory=dict)


MeshEvent = PeerUp | PeerDown | Received | TurnedAway
ClientHandler = Callable[[Link], Awaitable[None]]


class _Peer:
    """The state of one peer in the mesh."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.started = False
        self.scope = trio.CancelScope()  # cancels the task that dials
        self.redial_now = trio.Event()  # set when the peer is known to be alive: dial again without waiting
        self.outgoing: Link | None = None
        self.incoming: Link | None = None
        self.trouble = ""  # the reason why the last attempt to open a link failed; logged once
        self.malformed = 0  # the number of recent malformed messages of the peer
        self.malformed_at = -math.inf
        self.refused_until = -math.inf  # seconds until which the peer's links are refused


def _raise(_what: str, error: Exception) -> None:
    raise error


async def _no_clients(link: Link) -> None:
    link.drop(Code.REFUSED, f"{link.local.node} takes no clients here")


class Mesh:
    """The links of one node. Start it with ``await nursery.start(mesh.run)``; cancel ``run`` to stop the mesh.

    Why so large: Most attributes are the arguments below, each a decision that the network leaves to its user.
    """

    def __init__(
        self,
        hello: Hello,  # our HELLO; ``to`` is filled in for each peer
        peers: Mapping[str, Address],  # the address of each other member. An entry for this node is ignored.
        *,
        # Called with PeerUp, PeerDown, Received and TurnedAway, in order; must not block or raise.
        on_event: Callable[[MeshEvent], None],
        draw: Callable[[], float],  # returns a random number between 0 and 1, for the jitter of redialling
        # Serves one client. The link runs until this function returns, and is then closed; if it raises
        # LinkClosedError, the client has left.
        on_client: ClientHandler = _no_clients,
        # Checks the HELLO of each member that dials us; raises RefusedError to refuse the link.
        judge: Callable[[Hello], None] = lambda _: None,
        # Called with the HELLO of each peer that is not a member, before its link is refused.
        on_stranger: Callable[[Hello], None] = lambda _: None,
        # Checks the HELLO of each peer that answers us; raises RefusedError to end the link.
        recognise: Callable[[Hello], None] = lambda _: None,
        host: str | None = None,  # address to listen on; None for all addresses of this machine
        port: int = 0,  # port to listen on; 0 for a free one, see ``addresses``
        # Called with a text about each refusal and each peer that cannot be reached.
        on_log: Callable[[str], None] = lambda _: None,
        # Called with the name of an operation on a link and the unexpected exception that it raised. If this function
        # returns, only that link ends; by default it raises, which stops the mesh.
        on_fault: Callable[[str, Exception], object] = _raise,
        limits: LinkLimits | None = None,  # sizes and times of each link
        connection_limits: ConnectionLimits | None = None,  # limits the numbers of strangers and clients
        inflow: Inflow | None = None,  # limits the memory for incomplete messages of clients
        dial_context: ssl.SSLContext | None = None,  # TLS for links that we dial
        listen_context: ssl.SSLContext | None = None,  # TLS for links that we accept
        # Checks each stream, dialled or accepted, after the other end has sent its first event; raises RefusedError to
        # end the link.
        trust: Trusts = lambda _: None,
        admit: Admits | None = None,  # checks the stream and the HELLO of each caller; raises RefusedError to refuse it
        # Takes the info of a client's HELLO and returns the info of the answer; by default the info of ``hello``.
        tell_client: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        # Listens for programs of this machine, which need no TLS; closed at the end. None: no such socket.
        local_socket: socket.socket | None = None,
    ) -> None:
        self.hello, self._tell_client = hello, tell_client
        self._local_socket, self._listening_here = local_socket, trio.CancelScope()
        self.addresses: list[Address] = []
        self._peers = {node: _Peer(address) for node, address in peers.items() if node != hello.node}
        self._on_event = on_event
        self._on_client = on_client
        self._judge_peer, self._on_stranger, self._recognise = judge, on_stranger, recognise
        self._on_log, self._on_fault = on_log, on_fault
        self._draw = draw
        self._host = host
        self._port = port
        self._limits = limits or LinkLimits()
        self._connection_limits = connection_limits or ConnectionLimits()
        self._dial_context = dial_context
        self._listen_context = listen_context
        self._trust, self._admit_caller = trust, admit
        self._clients: set[Link] = set()
        self.inflow = inflow or Inflow(INFLOW_BYTES, trio.current_time)
        self._nursery: trio.Nursery | None = None
        self.read_loop = ReadLoop(on_fault, courtesy=Courtesy()) if ReadLoop.works else None

    @property
    def up(self) -> frozenset[str]:
        """The peers to which our link is open."""
        return frozenset(node for node, peer in self._peers.items() if peer.outgoing is not None)

    @property
    def unreachable(self) -> dict[str, str]:
        """The reason of the last failed attempt to open a link, for each peer to which no link is open."""
        return {node: peer.trouble for node, peer in self._peers.items() if peer.trouble and peer.outgoing is None}

    @property
    def peers(self) -> dict[str, Address]:
        """The address of each peer."""
        return {node: peer.address for node, peer in self._peers.items()}

    def send_many(self, node: str, payloads: Iterable[bytes], *, bulk: bool = False) -> bool:
        """Queue messages to a peer, to be sent together; ``bulk`` messages are sent after all others.

        Return whether a link to the peer is open. Even then the link may break before the messages arrive.

        Raises:
            LocalProtocolError: a message is longer than a frame may be; none was queued.
        """
        peer = self._peers.get(node)
        if peer is None or peer.outgoing is None:
            return False
        try:
            peer.outgoing.send_many_nowait(payloads, bulk=bulk)
        except LinkClosedError:
            return False
        return True

    def reject(self, node: str, reason: str) -> None:
        """End the link on which a peer sent a malformed message, with the reason.

        After a second malformed message within ten minutes, the peer's links are refused for a time that doubles with
        each further one. Otherwise a healthy node would read and refuse the same messages over and over.
        """
        peer = self._peers.get(node)
        if peer is None or peer.incoming is None:
            return
        now = trio.current_time()
        if now - peer.malformed_at > FORGIVEN_SECONDS:
            peer.malformed = 0
        seconds = min(REFUSED_SECONDS_MAX, REFUSED_SECONDS_MIN * 2.0 ** (peer.malformed - 1)) if peer.malformed else 0.0
        peer.malformed, peer.malformed_at, peer.refused_until = min(peer.malformed + 1, 30), now, now + seconds
        self._on_log(
            f"ended the link from {node}, which sent a malformed message: {reason}"
            + (f"; its links are refused for {seconds:g} s" if seconds else "")
        )
        link, peer.incoming = peer.incoming, None
        link.drop(Code.MALFORMED, reason)

    @property
    def clients(self) -> list[Link]:
        """The links of all admitted clients."""
        return list(self._clients)

    def waiting_bytes(self) -> int:
        """Return the bytes in the send buffers of all links, to clients and peers."""
        peers = (peer.outgoing.waiting_bytes for peer in self._peers.values() if peer.outgoing is not None)
        return sum(link.waiting_bytes for link in self._clients) + sum(peers)

    def drop_slowest(self, held: Callable[[Link], int], least: int, stuck_seconds: float = 0.0) -> bool:
        """Disconnect the client that occupies most memory, if it occupies at least ``least`` bytes.

        Return whether a client was disconnected.

        Args:
            held: returns the bytes that the node holds for a client, without the send buffer of its link.
            least: the fewest bytes for which a client is disconnected, including the send buffer.
            stuck_seconds: only clients that have read nothing for this long are disconnected.
        """
        stuck = [link for link in self._clients if link.closed is None and link.stuck_seconds >= stuck_seconds]
        slowest = max(stuck, key=lambda link: link.waiting_bytes + held(link), default=None)
        if slowest is None:
            return False
        waiting = slowest.waiting_bytes + held(slowest)
        if waiting >= least:
            for_s = f" for {slowest.stuck_seconds:.0f} s" if slowest.stuck_seconds >= 1 else ""
            reason = f"{slowest.remote.node} does not read{for_s}: {waiting} bytes of this node's memory wait for it"
            self._on_log(f"ended a client's link: {reason}")
            slowest.drop(Code.OVERFLOW, reason)
        return waiting >= least

    def drop_half_sent(self, least: int, silent_seconds: float) -> None:
        """Disconnect clients that have sent a part of a message and then stopped.

        Args:
            least: the least size of the part.
            silent_seconds: the least time since its last bytes; less for a client that makes others wait.
        """
        late = self.inflow.late()
        for link in [link for link in self._clients if link.closed is None]:
            silent_s, size = link.silent_seconds, self.inflow.size(link)
            if link is late or (size >= least and silent_s >= silent_seconds):
                reason = f"{link.remote.node} has sent {size} bytes of a message and not its end"
                self._on_log(f"ended a client's link: {reason}")
                link.drop(Code.OVERFLOW, reason)

    @property
    def left_alone(self) -> dict[str, float]:
        """The peers whose links are refused for a time, after malformed messages, each with the seconds left."""
        now = trio.current_time()
        return {node: peer.refused_until - now for node, peer in self._peers.items() if peer.refused_until > now}

    def describe(self) -> dict[str, dict[str, float]]:
        """Return the peers whose links are refused, and the expiry of each peer's certificate, as plain values."""
        links = {node: peer.outgoing for node, peer in self._peers.items() if peer.outgoing is not None}
        ends = {node: certificate_end(link.stream) for node, link in links.items()}
        shown = {node: end for node, end in ends.items() if end is not None}
        return {"left_alone": self.left_alone, "peer_certificates": shown}

    def use_certificates(self, dial: ssl.SSLContext, listen: ssl.SSLContext) -> None:
        """Use other TLS contexts for new links, and end the links that are no longer trusted."""
        self._dial_context, self._listen_context = dial, listen
        links = [link for peer in self._peers.values() for link in (peer.outgoing, peer.incoming)]
        for link in [*filter(None, links), *self._clients]:
            try:
                self._trust(link.stream)
            except trio.BrokenResourceError:
                continue  # the link's reader gets this error, too, and ends the link
            except RefusedError as error:
                self._on_log(f"ended the link to {link.remote.node}: {error}")
                link.drop(error.code, error.message)

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Change the peers of the mesh. Links to and from removed peers are closed; links of unchanged peers stay."""
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
        """Listen, dial and serve until cancelled; then send GOODBYE on all links.

        Raises:
            ListenError: the node cannot listen on the address.
        """
        listeners = await self._listen()
        self.addresses = [listener.socket.getsockname()[:2] for listener in listeners]
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.read_loop is not None:
                nursery.start_soon(self.read_loop.run)
            if self._local_socket is not None:
                self.listen_here(self._local_socket)
            nursery.start_soon(trio.serve_listeners, self._welcome, listeners)
            self._start_dialling()
            task_status.started(self.addresses)

    def listen_here(self, local_socket: socket.socket) -> None:
        """Serve programs of this machine on another socket; the links of the earlier socket stay open."""
        assert self._nursery is not None
        self._listening_here.cancel()
        self._listening_here = trio.CancelScope()
        self._nursery.start_soon(self._serve_here, local_socket, self._listening_here, self._nursery)

    async def _serve_here(self, local_socket: socket.socket, scope: trio.CancelScope, handlers: trio.Nursery) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(local_socket))
        with scope:
            await trio.serve_listeners(self._welcome, [listener], handler_nursery=handlers)

    async def _listen(self) -> list[trio.SocketListener]:
        where = address_text(self._host or "*", self._port)
        try:
            return await open_listeners(self._host, self._port)
        except socket.gaierror as error:
            raise ListenError(f"cannot listen on {where}: the name is unknown here; give an address instead") from error
        except OverflowError as error:
            raise ListenError(f"cannot listen on {where}: a port is a number from 0 to 65535") from error
        except OSError as error:
            if error.errno in LACKING:
                raise ListenError(
                    f"cannot listen on {where}: this machine does not have the address; give one of its own "
                    "(list them with: ip address)"
                ) from error
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
                peer.redial_now = trio.Event()  # before the attempt, during which the peer may open a link
                link = None
                try:
                    link = await self._dial(node, peer)
                    if link is not None:
                        await self._use(node, peer, link)
                except Exception as error:
                    self._on_fault(f"the link to {node}", error)
                if link is not None:
                    if trio.current_time() - began > RETRY_SECONDS_MAX:  # the link worked and was not refused at once
                        delay = RETRY_SECONDS_MIN
                    peer.redial_now = trio.Event()
                with trio.move_on_after(delay * (0.5 + self._draw() / 2)):
                    await peer.redial_now.wait()
                delay = min(2 * delay, RETRY_SECONDS_MAX)

    async def _dial(self, node: str, peer: _Peer) -> Link | None:
        host, port = peer.address
        try:
            hello, limits = replace(self.hello, to=node), self._limits
            shaken = await handshake.dial(
                host, port, hello, limits.hello_seconds, limits, self._dial_context, self._trust, self._recognise
            )
        except NetError as error:
            trouble = str(error)
            if trouble != peer.trouble:  # logged once, not at every attempt
                peer.trouble = trouble
                self._on_log(f"no link to {node}: {trouble}")
                if isinstance(error, RefusedError):
                    self._on_event(TurnedAway(node, error.code, error.message, error.info))
            return None
        peer.trouble = ""
        return Link(*shaken, limits)

    async def _use(self, node: str, peer: _Peer, link: Link) -> None:
        """Use an open link for sending until it ends."""
        peer.outgoing = link
        self._on_event(PeerUp(node))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run)
                with suppress(LinkClosedError):
                    await link.receive()
                    link.drop(Code.UNEXPECTED, f"{node} sent a message on the link on which only this node sends")
        finally:
            if peer.outgoing is link:  # else set_peers has emitted PeerDown already
                peer.outgoing = None
                self._on_event(PeerDown(node, str(link.closed)))

    # --- accepting

    async def _welcome(self, stream: trio.SocketStream) -> None:
        """Accept a connection; a failure ends only this connection."""
        caller = _caller(stream)
        if self._connection_limits.is_crowded(stream.socket.fileno()):
            self._on_log(f"turned {caller} away: too many files are open; raise the limit (ulimit -n)")
            await trio.aclose_forcefully(stream)
            return
        number = stream.socket.fileno()
        try:
            await self._admit_and_serve(stream, caller, number)
        except Exception as error:
            self._on_fault(f"serving {caller}", error)

    async def _admit_and_serve(self, stream: trio.SocketStream, caller: str, file: int) -> None:
        """Do the handshake with a caller, and serve it. A stranger costs one task and the memory of a HELLO."""
        link = None
        address = caller.rpartition(":")[0]
        with trio.CancelScope() as scope:
            number, crowded = self._connection_limits.add_stranger(address, scope.cancel)
            if crowded:
                self._on_log(crowded)
            has_spoken = False

            async def admit(stream: trio.abc.Stream, hello: Hello) -> None:
                nonlocal has_spoken
                self._connection_limits.begin_admission(number)
                has_spoken = True
                if hello.role == "peer" and handshake.is_local(stream):
                    raise RefusedError(Code.REFUSED, "this socket is for programs of the machine, not for nodes")
                if self._admit_caller is not None:
                    await self._admit_caller(stream, hello)

            try:
                shaken = await handshake.accept(
                    stream,
                    self.hello,
                    self._answer_to,
                    self._limits,
                    None if handshake.is_local(stream) else self._listen_context,
                    self._trust,
                    admit,
                )
                link = Link(*shaken, self._limits)
            except NetError as error:
                self._on_log(f"refused {caller}: {error}")
            finally:
                self._connection_limits.remove_stranger(number)
                if has_spoken:
                    self._connection_limits.end_admission()
        if link is None:
            return
        if self.read_loop is not None:
            link.read_by(self.read_loop)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            if link.remote.role == "peer":
                await self._listen_to(link, caller)
            else:
                await self._serve(link, address, file)

    async def _serve(self, link: Link, address: str, file: int) -> None:
        """Admit a client, if the limits allow it, and serve it until it leaves."""
        try:
            self._connection_limits.add_client(address, file)
        except RefusedError as error:
            link.drop(error.code, error.message)
            self._on_log(f"refused a client from {address}: {error.message}")
            return
        self._clients.add(link)
        link.count_by(self.inflow)
        try:
            await self._on_client(link)
        except* LinkClosedError:
            pass  # the client hung up, which is not an error
        finally:
            self._clients.discard(link)
            self._connection_limits.remove_client(address)
            await link.aclose()

    def _answer_to(self, remote: Hello) -> Hello:
        """Return our answer to a caller's HELLO; raise RefusedError to refuse the caller."""
        if remote.role == "peer" and remote.node not in self._peers:
            self._on_stranger(remote)
            known = ", ".join(sorted([*self._peers, self.hello.node]))
            raise RefusedError(
                Code.UNKNOWN_MEMBER, f"{remote.node!r} is not a member of {self.hello.cluster!r} here; members: {known}"
            )
        if remote.role == "peer":
            left = self._peers[remote.node].refused_until - trio.current_time()
            if left > 0:
                raise RefusedError(
                    Code.MALFORMED, f"{remote.node} has sent malformed messages; try again in {left:.0f} s"
                )
            self._judge_peer(remote)
        elif self._tell_client is not None:
            return replace(self.hello, to=remote.node, info=self._tell_client(remote.info))
        return replace(self.hello, to=remote.node)

    async def _listen_to(self, link: Link, caller: str) -> None:
        """Emit the messages of a peer as events."""
        node = link.remote.node
        peer = self._peers.get(node)
        if peer is None:  # the peer was removed during the handshake
            link.drop(Code.UNKNOWN_MEMBER, f"{node} is no longer a member")
            return
        if peer.incoming is not None:
            peer.incoming.drop(Code.REPLACED, f"{node} opened a newer link")
            self._on_log(f"{node} opened a second link from {caller}; the first is closed")
        peer.incoming = link
        peer.redial_now.set()

        def take(payloads: list[bytes]) -> None:
            if self._is_incoming(node, link):
                self._on_event(Received(node, payloads))

        link.deliver_to(take)
        await link.wait_closed()
        if self._is_incoming(node, link):
            self._peers[node].incoming = None

    def _is_incoming(self, node: str, link: Link) -> bool:
        """Return whether this is still the link on which a member sends: not replaced, and the member not removed."""
        peer = self._peers.get(node)
        return peer is not None and peer.incoming is link


def _caller(stream: trio.SocketStream) -> str:
    if handshake.is_local(stream):
        return f"{LOCAL}:{_process_of(stream)}"
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "a caller that is gone"
    return address_text(host, port)


def _process_of(stream: trio.SocketStream) -> int:
    """Return the id of the process at the other end of a Unix socket; 0 if the system does not provide it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return 0
    try:
        return int.from_bytes(stream.socket.getsockopt(socket.SOL_SOCKET, option, 12)[:4], sys.byteorder)
    except OSError:
        return 0
