"""A cluster of three nodes, and a fourth member: its real messages are recorded, and the attacks are then sent in its
name.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cbor2
import trio

import bedrockish
from bedrockish.errors import BedrockishError
from bedrockish_net.frame import FrameKind, FrameReader
from tools.cluster import LocalCluster, LocalNode, free_ports

FRAME_BYTES_MAX = 64 << 20
LIAR = "F"


class Tap:
    """A proxy that forwards streams to a port and records the bytes that callers sent."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_ports(1)[0]
        self.heard: list[bytearray] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                kept = bytearray()
                self.heard.append(kept)
                try:
                    node = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    caller.close()
                    continue
                threading.Thread(target=self._pass, args=(caller, node, kept), daemon=True).start()
                threading.Thread(target=self._pass, args=(node, caller, None), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept += data
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()  # the thread of the other direction closes ``sink``

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def messages(self, role: str) -> tuple[bytes, list[bytes]]:
        """Return the last HELLO of a caller with a role, and all messages of the callers with this role."""
        hello, said = b"", []
        for kept in self.heard:
            reader = FrameReader(FRAME_BYTES_MAX)
            reader.feed(bytes(kept))
            frames = [frame for frame in iter(reader.next_frame, None) if frame is not None]
            if frames and frames[0][0] is FrameKind.HELLO and cbor2.loads(frames[0][1])["role"] == role:
                hello = frames[0][1]
                said += [payload for kind, payload in frames[1:] if kind is FrameKind.DATA]
        return hello, said


class Lab(LocalCluster):
    """A cluster of three nodes, each with a tap before it, and a fourth member whose messages the taps record."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ("A", "B", "C", LIAR))
        self.add_http()
        self.taps = {node.name: Tap(node.port) for node in self.nodes[:3]}
        self.write_files()

    def peer_address(self, node: LocalNode, peer: LocalNode) -> str:
        """Return the address at which a node finds a peer: for the fourth member, a tap that records its messages."""
        port = self.taps[peer.name].port if node.name == LIAR and peer.name in self.taps else peer.port
        return f"127.0.0.1:{port}"

    def record(self) -> None:
        """Have clients and nodes send every kind of message once, then end the fourth node."""
        for node in self.nodes:
            node.start()
        trio.run(self.wait_all_ready)
        liar = self.nodes[3]
        hosts = ",".join(f"127.0.0.1:{tap.port}" for tap in self.taps.values())
        with bedrockish.connect(f"bedrockish://{hosts}/?discover=no") as db:
            talk(db)
        with bedrockish.connect(f"bedrockish://127.0.0.1:{liar.port}/?discover=no&timeout=20") as db:
            for number in range(20):  # the messages of a leader to the others
                db.execute("INSERT INTO t(x) VALUES (?)", (f"liar {number}",))
                with contextlib.suppress(BedrockishError):
                    db.execute("UPDATE t SET x = x || '.' WHERE id = 1", timeout=2)
        time.sleep(1.0)
        liar.kill()
        self.nodes.remove(liar)


def talk(db: bedrockish.Connection) -> None:
    """Make every kind of call of a client to a node."""
    db.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, x)")
    db.execute("CREATE TABLE IF NOT EXISTS p(a REFERENCES t(id), b UNIQUE, c CHECK (c > 0), d AS (c + 1))")
    for number in range(20):
        db.execute("INSERT INTO t(x) VALUES (?)", (number,))
    with db.transaction() as transaction:
        transaction.execute("SELECT * FROM t")
        transaction.execute("UPDATE t SET x = 5 WHERE id = 3")
    with db.stream("SELECT * FROM t") as rows:
        assert list(rows)
    db.execute("SELECT count(*) FROM t", read="strict")
    db.columns("SELECT * FROM t")
    db.explain("UPDATE t SET x = 1 WHERE id = 2")
    db.nodes()
    db.status()
    with contextlib.suppress(BedrockishError):
        db.execute("SELECT * FROM nothing_of_that_name")


@contextlib.contextmanager
def lab(directory: Path) -> Iterator[Lab]:
    """Start a lab, record its messages, and run it until the end of the block."""
    made = Lab(directory)
    try:
        made.record()
        yield made
    finally:
        for tap in made.taps.values():
            tap.close()
        made.stop()
