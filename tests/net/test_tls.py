"""Mutual TLS: real certificates, made for each run, over real sockets."""

import functools
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trustme

from bedrockish_net import handshake
from bedrockish_net.errors import Code, DialError, NetError, RefusedError, TlsError
from bedrockish_net.events import Hello
from bedrockish_net.limits import LinkLimits
from bedrockish_net.local_socket import is_loopback
from bedrockish_net.mesh import Mesh, MeshEvent, PeerUp, Received
from bedrockish_net.socket_link import dial
from bedrockish_net.stream import Link
from bedrockish_net.tls import (
    CertificateError,
    certificate_end,
    certificate_names,
    check_revoked,
    dial_context,
    listen_context,
    read_revoked,
    why_refused,
)
from bedrockish_net.x509 import read_certificate
from tests.net.links import dial_link

HOST = "127.0.0.1"


@dataclass
class Files:
    """The paths of one node's three PEM files."""

    ca: str
    cert: str
    key: str


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def issue(authority: trustme.CA, path: Path, node: str) -> Files:
    files = Files(*(str(path / f"{node}.{part}.pem") for part in ("ca", "cert", "key")))
    leaf = authority.issue_cert(node)
    authority.cert_pem.write_to_path(files.ca)
    leaf.cert_chain_pems[0].write_to_path(files.cert)
    leaf.private_key_pem.write_to_path(files.key)
    return files


@asynccontextmanager
async def listening(files: Files) -> AsyncIterator[tuple[int, trio.MemoryReceiveChannel[MeshEvent | str]]]:
    """Run node-b with these files; yield its port, its events and its log lines."""
    say, told = trio.open_memory_channel[MeshEvent | str](100)
    mesh = Mesh(
        Hello("node-b", "shop"),
        {"node-a": (HOST, 1)},
        on_event=say.send_nowait,
        on_log=say.send_nowait,
        draw=lambda: 0.5,
        host=HOST,
        limits=LinkLimits(hello_seconds=2, goodbye_seconds=0.3),
        listen_context=listen_context(files.ca, files.cert, files.key),
    )
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            [(_, port)] = await nursery.start(mesh.run)
            yield port, told
            nursery.cancel_scope.cancel()


async def until(told: trio.MemoryReceiveChannel[MeshEvent | str], text: str) -> None:
    """Wait until a recorded text contains this one."""
    async for each in told:
        if text in str(each):
            return


async def test_two_meshes_talk_under_tls(authority: trustme.CA, tmp_path: Path) -> None:
    a, b = issue(authority, tmp_path, "node-a"), issue(authority, tmp_path, "node-b")
    up = trio.Event()
    async with listening(b) as (port, told), trio.open_nursery() as nursery:
        mesh = Mesh(
            Hello("node-a", "shop"),
            {"node-b": (HOST, port)},
            on_event=lambda event: up.set() if isinstance(event, PeerUp) else None,
            draw=lambda: 0.5,
            host=HOST,
            dial_context=dial_context(a.ca, a.cert, a.key),
        )
        await nursery.start(mesh.run)
        await up.wait()
        mesh.send_many("node-b", [b"secret"])
        await until(told, str(Received("node-a", [b"secret"])))
        nursery.cancel_scope.cancel()


async def test_a_certificate_of_another_node_is_refused(authority: trustme.CA, tmp_path: Path) -> None:
    thief, b = issue(authority, tmp_path, "thief"), issue(authority, tmp_path, "node-b")
    async with listening(b) as (port, told):
        with pytest.raises(RefusedError, match="'node-a' showed a certificate of thief"):
            await dial_link(
                HOST,
                port,
                Hello("node-a", "shop", to="node-b"),
                ssl_context=dial_context(thief.ca, thief.cert, thief.key),
            )
        await until(told, "showed a certificate of thief")


async def test_the_dialler_checks_the_accepters_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    a, thief = issue(authority, tmp_path, "node-a"), issue(authority, tmp_path, "thief")
    async with listening(thief) as (port, _):
        with pytest.raises(RefusedError, match="'node-b' showed a certificate of thief"):
            await dial_link(HOST, port, Hello("node-a", "shop"), ssl_context=dial_context(a.ca, a.cert, a.key))


async def test_a_certificate_of_another_authority_is_refused(authority: trustme.CA, tmp_path: Path) -> None:
    b, stranger = issue(authority, tmp_path, "node-b"), issue(trustme.CA(), tmp_path, "node-a")
    async with listening(b) as (port, _):
        context = dial_context(b.ca, stranger.cert, stranger.key)
        with pytest.raises(NetError):
            await dial_link(HOST, port, Hello("node-a", "shop"), ssl_context=context)
        with pytest.raises(DialError, match="certificate verify failed"):
            await dial_link(
                HOST, port, Hello("node-a", "shop"), ssl_context=dial_context(stranger.ca, stranger.cert, stranger.key)
            )


async def test_plain_dialler_at_a_tls_port_gets_a_hint(authority: trustme.CA, tmp_path: Path) -> None:
    b = issue(authority, tmp_path, "node-b")
    async with listening(b) as (port, told):
        hello, link_of = Hello("shell", None, "client"), functools.partial(dial, HOST, port)
        with pytest.raises(DialError, match=r"before it said HELLO.*a node that speaks TLS does that.*ca=certs"):
            await dial_link(HOST, port, hello)
        await until(told, f"refused {HOST}")
        with pytest.raises(DialError, match="a node that speaks TLS does that"):
            await trio.to_thread.run_sync(lambda: link_of(hello, 5, LinkLimits(), None))
        context = dial_context(b.ca, b.cert, b.key)
        link = await dial_link(HOST, port, Hello("shell", None, "client"), ssl_context=context)
        await link.aclose()
        # A client without a certificate is disconnected during the handshake, or just after it.
        bare = ssl.create_default_context(cafile=b.ca)
        bare.check_hostname = False
        with pytest.raises(NetError, match="lets only certificates in: a client shows one"):
            await dial_link(HOST, port, Hello("shell", None, "client"), ssl_context=bare)
        with pytest.raises(NetError, match="lets only certificates in: a client shows one"):
            await trio.to_thread.run_sync(lambda: link_of(hello, 5, LinkLimits(), bare))


def test_broken_handshake_does_not_count_as_a_refusal(authority: trustme.CA, tmp_path: Path) -> None:
    """A node that restarts breaks its links, and accepts new ones a moment later: a client dials again."""
    b = issue(authority, tmp_path, "node-b")
    with socket.create_server((HOST, 0)) as server:

        def hang_up() -> None:
            for _ in range(2):
                link, _ = server.accept()
                link.recv(1)
                link.recv(65_536)  # all of it, so that the system sends no reset
                link.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        port, hello, context = (
            server.getsockname()[1],
            Hello("shell", None, "client"),
            dial_context(b.ca, b.cert, b.key),
        )
        with pytest.raises(DialError, match="during the TLS handshake") as caught:
            dial(HOST, port, hello, 5, LinkLimits(), context)
        assert not isinstance(caught.value, TlsError)
        with pytest.raises(DialError, match="during the TLS handshake") as caught:
            trio.run(functools.partial(dial_link, HOST, port, hello, ssl_context=context))
        assert not isinstance(caught.value, TlsError)
        thread.join(60)


def test_missing_and_wrong_files_are_named(authority: trustme.CA, tmp_path: Path) -> None:
    a, b = issue(authority, tmp_path, "node-a"), issue(authority, tmp_path, "node-b")
    with pytest.raises(CertificateError, match=r"nowhere\.pem"):
        dial_context(str(tmp_path / "nowhere.pem"), a.cert, a.key)
    with pytest.raises(CertificateError, match=r"cannot use certificate .*node-a"):
        listen_context(a.ca, a.cert, b.key)


def test_names_of_a_certificate_come_from_subject_and_alternatives() -> None:
    certificate = {
        "subject": ((("organizationName", "x"),), (("commonName", "A"),)),
        "subjectAltName": (("DNS", "a.shop"), ("IP Address", "10.0.0.1")),
    }
    assert certificate_names(certificate) == {"A", "a.shop"}
    assert certificate_names({}) == frozenset()


def read(path: str) -> tuple[int, datetime]:
    return read_certificate("a comment\n" + Path(path).read_text())


def serial_of(files: Files) -> int:
    return read(files.cert)[0]


async def test_a_certificate_is_read_as_openssl_reads_it(authority: trustme.CA, tmp_path: Path) -> None:
    """The serial number is the one that the other end of a link sees; the expiry is that of the certificate."""
    b = issue(authority, tmp_path, "node-b")
    seen: list[trio.abc.Stream] = []
    a = issue(authority, tmp_path, "node-a")
    async with listening(b) as (port, _):
        stream, _ = await handshake.dial(
            HOST,
            port,
            Hello("node-a", "shop", to="node-b"),
            2,
            LinkLimits(),
            dial_context(a.ca, a.cert, a.key),
            seen.append,
        )
        assert isinstance(stream, trio.SSLStream)
        told = stream.getpeercert()
        assert seen == [stream]
        await trio.aclose_forcefully(stream)
    serial, ends = read(b.cert)
    assert int(told["serialNumber"], 16) == serial
    assert ssl.cert_time_to_seconds(told["notAfter"]) == ends.timestamp()
    assert read(b.ca)[1] >= ends


def test_malformed_certificate_raises_value_error() -> None:
    """Any truncation or change raises ValueError only."""
    pem = trustme.CA().cert_pem.bytes().decode()
    der = ssl.PEM_cert_to_DER_cert(pem)
    for text in ("", "junk", ssl.PEM_FOOTER + ssl.PEM_HEADER, pem[: len(pem) // 2]):
        with pytest.raises(ValueError, match=r"\w"):
            read_certificate(text)
    for length in range(60):
        with pytest.raises(ValueError, match=r"\w"):
            read_certificate(ssl.DER_cert_to_PEM_cert(der[:length]))


async def test_status_of_certificates_skips_a_broken_link(authority: trustme.CA, tmp_path: Path) -> None:
    """A killed peer ends its TLS without a close_notify; OpenSSL forgets the handshake before the link is gone."""
    files = issue(authority, tmp_path, "node-a")
    near, far = trio.socket.socketpair()
    asking = trio.SSLStream(
        trio.SocketStream(near), dial_context(files.ca, files.cert, files.key), server_hostname=HOST
    )
    asked = trio.SSLStream(trio.SocketStream(far), listen_context(files.ca, files.cert, files.key), server_side=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.do_handshake)
        nursery.start_soon(asked.do_handshake)
    with asked.transport_stream.socket, near:
        assert (certificate_end(asked) or 0) > 0
        check_revoked(asked, frozenset())
        near.close()
        with pytest.raises(trio.BrokenResourceError):
            await asked.receive_some()
        assert certificate_end(asked) is None
        with pytest.raises(trio.BrokenResourceError):
            check_revoked(asked, frozenset())


def test_list_of_revoked_certificates_is_read_or_refused_with_its_line() -> None:
    text = "# those of last year\n0A:ff  # bob\nserial=1B\n\n"
    assert read_revoked(text) == {0xAFF, 0x1B}
    with pytest.raises(CertificateError, match="line 2 is not a serial number"):
        read_revoked("1\nbob\n")


async def test_revoked_certificate_is_refused_and_its_links_end(authority: trustme.CA, tmp_path: Path) -> None:
    """The list holds for both ends of a link, for peers and clients, and for links that are open when it is read."""
    a, b = issue(authority, tmp_path, "node-a"), issue(authority, tmp_path, "node-b")
    revoked: set[int] = set()
    log: list[str] = []
    came = trio.Event()

    async def serve(link: Link) -> None:
        came.set()
        await link.wait_closed()

    mesh = Mesh(
        Hello("node-b", "shop"),
        {"node-a": (HOST, 1)},
        on_event=lambda _: None,
        on_log=log.append,
        on_client=serve,
        draw=lambda: 0.5,
        host=HOST,
        limits=LinkLimits(hello_seconds=2, goodbye_seconds=0.3),
        listen_context=listen_context(b.ca, b.cert, b.key),
        trust=lambda stream: check_revoked(stream, revoked),
    )
    contexts = dial_context(b.ca, b.cert, b.key), listen_context(b.ca, b.cert, b.key)
    own = dial_context(a.ca, a.cert, a.key)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            [(_, port)] = await nursery.start(mesh.run)
            peer = await dial_link(HOST, port, Hello("node-a", "shop"), ssl_context=own)
            client = await dial_link(HOST, port, Hello("shell", None, "client"), ssl_context=own)
            nursery.start_soon(peer.run)
            nursery.start_soon(client.run)
            await came.wait()
            mesh.use_certificates(*contexts)
            await client.send(b"still open")
            revoked.add(serial_of(a))
            mesh.use_certificates(*contexts)
            for link in (peer, client):
                await link.wait_closed()
                assert link.closed is not None
                assert link.closed.code == Code.REVOKED
            for hello in (Hello("node-a", "shop"), Hello("shell", None, "client")):
                with pytest.raises(RefusedError, match=r"node-a with the serial number .* is revoked") as caught:
                    await dial_link(HOST, port, hello, ssl_context=own)
                assert caught.value.code == Code.REVOKED
            revoked.remove(serial_of(a))
            revoked.add(serial_of(b))
            with pytest.raises(RefusedError, match=r"node-b with the serial number .* is revoked"):
                await handshake.dial(
                    HOST,
                    port,
                    Hello("node-a", "shop"),
                    2,
                    LinkLimits(),
                    own,
                    lambda stream: check_revoked(stream, revoked),
                )
            nursery.cancel_scope.cancel()
    assert any("ended the link to shell" in line for line in log)


async def test_goodbye_counts_only_from_the_dialled_node(authority: trustme.CA, tmp_path: Path) -> None:
    """A GOODBYE before HELLO is a refusal, which counts only with the certificate of the dialled node."""
    a, b, thief = (issue(authority, tmp_path, name) for name in ("node-a", "node-b", "thief"))
    for files, code in ((thief, Code.CERTIFICATE), (b, "amnesia")):
        server = listen_context(files.ca, files.cert, files.key)

        async def accuse(stream: trio.SocketStream, server: ssl.SSLContext = server) -> None:
            def refuse(_: Hello) -> Hello:
                raise RefusedError("amnesia", "your file is another one", {"store": "s"})

            with pytest.raises(RefusedError):
                await handshake.accept(stream, Hello("node-b", "shop"), refuse, LinkLimits(), server)

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(functools.partial(trio.serve_tcp, accuse, 0, host=HOST))
            port = listeners[0].socket.getsockname()[1]
            with pytest.raises(RefusedError) as caught:
                await dial_link(
                    HOST, port, Hello("node-a", "shop", to="node-b"), ssl_context=dial_context(a.ca, a.cert, a.key)
                )
            assert caught.value.code == code
            assert caught.value.info == ({"store": "s"} if code == "amnesia" else {})
            nursery.cancel_scope.cancel()


class _Far:
    """A stream whose addresses are on another machine; a send fails the test."""

    def __init__(self) -> None:
        self.socket = self

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.7", 7373

    async def aclose(self) -> None:
        pass


async def test_no_plain_text_goes_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A HELLO may hold a password, so any send on this stream fails the test."""

    async def connect(_host: str, _port: int) -> _Far:
        return _Far()

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    with pytest.raises(TlsError, match=r"host2:7373 is on another machine.*'bedrockish tls certs NODE=HOST") as caught:
        await dial_link("host2", 7373, Hello("shell", None, "client", info={"user": "ann", "password": "x"}))
    assert "?ca=certs/ca.pem" in str(caught.value)
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "LOCALHOST.")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "host1", "10.0.0.1", "localhost.evil")] == [False] * 5


def judged(files: Files, node: str = "A", revoked: frozenset[int] = frozenset(), *, optional: bool = False) -> str:
    paths = (files.ca, files.cert, files.key)
    return why_refused(dial_context(*paths), listen_context(*paths, optional=optional), node, revoked)


def test_own_certificate_is_checked_as_peers_check_it(authority: trustme.CA, tmp_path: Path) -> None:
    """A certificate of another authority or name, or not valid yet, is found before the first link."""
    good = issue(authority, tmp_path, "A")
    serial = read_certificate(Path(good.cert).read_text())[0]
    assert judged(good) == judged(good, "a") == judged(good, optional=True) == ""
    assert judged(good, "B") == "it names a, and not B"
    assert judged(good, revoked=frozenset({serial})) == "it is revoked"
    other = issue(trustme.CA(), tmp_path, "other")
    assert "unable to get local issuer" in judged(Files(good.ca, other.cert, other.key), "other")


@pytest.mark.parametrize(("first", "last", "says"), [(2, 9, "is not yet valid"), (-9, -2, "has expired")])
def test_expired_own_certificate_is_reported(
    first: int, last: int, says: str, authority: trustme.CA, tmp_path: Path
) -> None:
    files, now = issue(authority, tmp_path, "A"), datetime.now(UTC)
    leaf = authority.issue_cert("A", not_before=now + timedelta(first), not_after=now + timedelta(last))
    leaf.cert_chain_pems[0].write_to_path(files.cert)
    leaf.private_key_pem.write_to_path(files.key)
    assert judged(files) == f"certificate {says}"
