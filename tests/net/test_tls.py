"""Mutual TLS: real certificates, made for each run, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trustme

from net.errors import DialError, NetError, RefusedError
from net.events import Hello
from net.limits import Limits
from net.mesh import Mesh, MeshEvent, PeerUp, Received
from net.stream import Link
from net.tls import CertificateError, certificate_names, dial_context, listen_context

HOST = "127.0.0.1"


@dataclass
class Files:
    """Where one node's three PEM files are."""

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
    """Run node-b with these files; give its port and everything that it tells or logs."""
    say, told = trio.open_memory_channel[MeshEvent | str](100)
    mesh = Mesh(
        Hello("node-b", "shop"),
        {"node-a": (HOST, 1)},
        on_event=say.send_nowait,
        on_log=say.send_nowait,
        draw=lambda: 0.5,
        host=HOST,
        limits=Limits(hello_seconds=2, goodbye_seconds=0.3),
        listen_context=listen_context(files.ca, files.cert, files.key),
    )
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            [(_, port)] = await nursery.start(mesh.run)
            yield port, told
            nursery.cancel_scope.cancel()


async def until(told: trio.MemoryReceiveChannel[MeshEvent | str], text: str) -> None:
    """Wait until something is told that has this in it."""
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
        mesh.send("node-b", b"secret")
        await until(told, str(Received("node-a", [b"secret"])))
        nursery.cancel_scope.cancel()


async def test_a_certificate_of_another_node_is_refused(authority: trustme.CA, tmp_path: Path) -> None:
    thief, b = issue(authority, tmp_path, "thief"), issue(authority, tmp_path, "node-b")
    async with listening(b) as (port, told):
        with pytest.raises(RefusedError, match="'node-a' showed a certificate of thief"):
            await Link.dial(
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
            await Link.dial(HOST, port, Hello("node-a", "shop"), ssl_context=dial_context(a.ca, a.cert, a.key))


async def test_a_certificate_of_another_authority_is_refused(authority: trustme.CA, tmp_path: Path) -> None:
    b, stranger = issue(authority, tmp_path, "node-b"), issue(trustme.CA(), tmp_path, "node-a")
    async with listening(b) as (port, _):
        context = dial_context(b.ca, stranger.cert, stranger.key)
        with pytest.raises(NetError):
            await Link.dial(HOST, port, Hello("node-a", "shop"), ssl_context=context)
        with pytest.raises(DialError, match="certificate verify failed"):
            await Link.dial(
                HOST,
                port,
                Hello("node-a", "shop"),
                ssl_context=dial_context(stranger.ca, stranger.cert, stranger.key),
            )


async def test_plain_against_tls_says_so(authority: trustme.CA, tmp_path: Path) -> None:
    b = issue(authority, tmp_path, "node-b")
    async with listening(b) as (port, told):
        with pytest.raises(NetError):
            await Link.dial(HOST, port, Hello("node-a", "shop"))
        await until(told, f"refused {HOST}")
        context = dial_context(b.ca, b.cert, b.key)
        link = await Link.dial(HOST, port, Hello("shell", None, "client"), ssl_context=context)
        await link.aclose()


def test_missing_and_wrong_files_are_named(authority: trustme.CA, tmp_path: Path) -> None:
    a, b = issue(authority, tmp_path, "node-a"), issue(authority, tmp_path, "node-b")
    with pytest.raises(CertificateError, match=r"nowhere\.pem"):
        dial_context(str(tmp_path / "nowhere.pem"), a.cert, a.key)
    with pytest.raises(CertificateError, match=r"cannot use certificate .*node-a"):
        listen_context(a.ca, a.cert, b.key)


def test_names_come_from_both_places() -> None:
    certificate = {
        "subject": ((("organizationName", "x"),), (("commonName", "A"),)),
        "subjectAltName": (("DNS", "a.shop"), ("IP Address", "10.0.0.1")),
    }
    assert certificate_names(certificate) == {"A", "a.shop"}
    assert certificate_names({}) == frozenset()
