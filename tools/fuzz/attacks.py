"""The attackers: each runs in its own thread, against all three nodes, until the time is over."""

import contextlib
import http.client
import json
import random
import socket
import struct
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import cbor2
import trio

import bedrockish
from bedrockish import open_client
from bedrockish.api.requests import STALE, Request, Statement
from bedrockish.api.url import Address, parse_url
from bedrockish.config.config import Config, build
from bedrockish.engine.engine import Engine
from bedrockish.errors import BedrockishError, ConfigError, InternalError, UnavailableError
from bedrockish.node.runtime import Runtime
from bedrockish_net.frame import HEADER, FrameKind, encode_frame
from bedrockish_net.mesh import Received
from tools.cluster import unwrap
from tools.fuzz.lab import LIAR, Lab
from tools.fuzz.mutate import mutated, mutated_value, odd_text

MESSAGES = 4_000  # number of messages that a node on one copy of A's file gets
AT_ONCE = 40  # frames or messages that are sent before the node's reaction is checked
FINE = (
    "SELECT * FROM t WHERE id = 1",
    "INSERT INTO t(x) VALUES ('a')",
    "UPDATE t SET x = 2 WHERE id = 2",
    "CREATE VIEW v AS SELECT * FROM t",
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t WHERE id = 9; END",
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 9) SELECT * FROM n",
)
PATHS = ["/db/query", "/db/execute", "/db/transaction", "/db/stream", "/status", "/readyz", "/metrics", "/changes"]


class Attack:
    """A kind of attack, and its counts."""

    def __init__(self, lab: Lab, seed: int, until: float) -> None:
        self.lab, self.luck, self.until = lab, random.Random(seed), until
        self.counts: Counter[str] = Counter()  # messages by kind and outcome
        self.findings: list[str] = []  # violations

    def run(self) -> None:
        """Attack until the time is over; an unexpected exception of this program is also a finding."""
        try:
            self.attack()
        except Exception as error:
            self.findings.append(f"{type(self).__name__} failed: {type(error).__name__}: {error}")

    def attack(self) -> None:
        """Repeat ``once`` until the time is over."""
        while time.monotonic() < self.until:
            self.once()

    def once(self) -> None:
        """Make one attempt; each subclass defines it."""
        raise NotImplementedError

    def found(self, what: str) -> None:
        """Record a violation; only the first twenty are kept."""
        if len(self.findings) < 20:
            self.findings.append(what)


class Frames(Attack):
    """Recorded frames with random errors, on links that are opened as a client or a peer opens them."""

    role = ""

    def __init__(self, lab: Lab, seed: int, until: float) -> None:
        super().__init__(lab, seed, until)
        self._links: dict[str, socket.socket] = {}
        found = {node.name: lab.taps[node.name].messages(self.role) for node in lab.nodes}
        self._hellos = {name: hello for name, (hello, _) in found.items()}
        self._said = [payload for _, said in found.values() for payload in said]
        assert self._said, f"nothing was recorded of a {self.role}"

    def once(self) -> None:
        node = self.luck.choice(self.lab.nodes)
        try:
            link = self._links.get(node.name) or self._open(node.name, node.port)
            frames = [mutated(self.luck.choice(self._said), self.luck) for _ in range(AT_ONCE)]
            data = b"".join(self._framed(frame) for frame in frames)
            link.settimeout(5)
            link.sendall(data)
            self.counts["frames"] += len(frames)
            link.setblocking(False)
            while link.recv(1 << 16):
                pass
            self._drop(node.name)
        except BlockingIOError:
            pass  # the link is open, and no further bytes came
        except OSError:
            self._drop(node.name)
            time.sleep(0.002)

    def _open(self, name: str, port: int) -> socket.socket:
        link = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._links[name] = link
        hello = self._hellos[name]
        link.sendall(encode_frame(FrameKind.HELLO, mutated(hello, self.luck) if self.luck.random() < 0.02 else hello))
        if not link.recv(1 << 16):
            raise ConnectionResetError
        self.counts["links"] += 1
        return link

    def _drop(self, name: str) -> None:
        if name in self._links:
            self._links.pop(name).close()

    def _framed(self, payload: bytes) -> bytes:
        way = self.luck.random()
        if way < 0.002:
            return HEADER.pack(self.luck.choice((0, 2**31, 2**32 - 1)), self.luck.randrange(256)) + payload
        return encode_frame(FrameKind.DATA, payload)


class ClientFrames(Frames):
    """Recorded messages of clients, with random errors."""

    role = "client"


class PeerFrames(Frames):
    """Recorded messages of the fourth member, with random errors."""

    role = "peer"

    def _open(self, name: str, port: int) -> socket.socket:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            assert cbor2.loads(self._hellos[name])["node"] == LIAR
        return super()._open(name, port)


class Messages(Attack):
    """Messages of a peer with random errors, handed to a node that runs without links on a copy of A's file.

    A real node ends the link at the first message that it cannot read, and soon refuses the peer for a minute.
    """

    def once(self) -> None:
        """Hand messages to a node on a new copy; a readable false message may bar the node, which then ignores most."""
        said = self.lab.taps["A"].messages("peer")[1]
        with tempfile.TemporaryDirectory(prefix="fuzz") as directory:
            path = Path(directory) / "copy.db"
            source = apsw.Connection(str(self.lab.nodes[0].database), flags=apsw.SQLITE_OPEN_READONLY)
            target = apsw.Connection(str(path))
            with closing(source), closing(target), target.backup("main", source, "main") as backup:
                backup.step(-1)
            engine = Engine.open(path, founding=None)
            here = Address("127.0.0.1", 1)
            runtime = Runtime(engine, Config(node="A", database=str(path), listen=here, peers={"A": here}))
            try:
                trio.run(self._talk, runtime, said)
            except Exception as error:
                self.found("".join(traceback.format_exception(unwrap(error)))[-1500:])
            finally:
                engine.close()
            self.counts["messages refused"] += runtime.counts["malformed"]
            if runtime.faults.last:
                self.found(runtime.faults.last)

    async def _talk(self, runtime: Runtime, said: list[bytes]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run)
            await trio.sleep(0.05)
            for _ in range(MESSAGES // AT_ONCE):
                if time.monotonic() > self.until:
                    break
                for _ in range(AT_ONCE):
                    runtime.peers.on_net(Received(LIAR, [mutated(self.luck.choice(said), self.luck)]))
                self.counts["messages"] += AT_ONCE
                await runtime.durable()
            with suppress(UnavailableError):  # a message may have barred the node, which then refuses requests
                await runtime.submit(Request("after", (Statement("SELECT count(*) FROM t"),), read=STALE, timeout_s=20))
            nursery.cancel_scope.cancel()


class Bytes(Attack):
    """Bytes that are not the protocol, half of a message, and silence."""

    def once(self) -> None:
        """Send some bytes to one port."""
        node, luck = self.luck.choice(self.lab.nodes), self.luck
        port = node.port if luck.random() < 0.5 else node.http_port
        data = luck.choice(
            (
                luck.randbytes(luck.randrange(1, 2_000)),
                b"",
                b"GET / HTTP/1.1\r\nHost: " + luck.randbytes(50) + b"\r\n\r\n",
                struct.pack(">IB", 1 << luck.randrange(32), luck.randrange(8)) + luck.randbytes(100),
                encode_frame(FrameKind.HELLO, cbor2.dumps(mutated_value({"role": "client", "info": {}}, luck))),
                b"\x16\x03\x01" + luck.randbytes(200),
            )
        )
        with contextlib.suppress(OSError):
            link = socket.create_connection(("127.0.0.1", port), timeout=2)
            with link:
                link.sendall(data)
                self.counts["streams"] += 1
                if luck.random() < 0.5:
                    link.settimeout(0.05)
                    link.recv(1_000)


class Texts(Attack):
    """Invalid or excessive SQL from a client that follows the protocol."""

    def __init__(self, lab: Lab, seed: int, until: float) -> None:
        super().__init__(lab, seed, until)
        self._clients = [bedrockish.connect(lab.url(index, only=True, options="discover=no")) for index in range(3)]

    def once(self) -> None:
        db, text = self.luck.choice(self._clients), odd_text(self.luck, FINE)
        self.counts["texts"] += 1
        way: Callable[[], object] = self.luck.choice(
            (
                lambda: db.execute(text, timeout=2),
                lambda: db.execute(text, [None, "a", b"b", 1.5], timeout=2),
                lambda: db.explain(text, timeout=2),
                lambda: db.columns(text, timeout=2),
                lambda: streamed(db, text),
                lambda: db.transact([text, ("SELECT 1", None)], timeout=2),
            )
        )
        try:
            way()
            self.counts["texts accepted"] += 1
        except InternalError as error:
            self.found(f"{text[:200]!r}: {error.message}")
        except BedrockishError:
            self.counts["texts refused"] += 1
        except Exception as error:
            self.found(f"a client raised {type(error).__name__}: {error} at {text[:200]!r}")


ORDERS: tuple[dict[str, Any], ...] = (
    {"do": "clock", "set": "on"},
    {"do": "hold", "name": "reader", "after": None, "release": True},
    {"do": "prune", "older_than_s": 1e6, "larger_than_mb": 1e6, "force": False},
    {"do": "transactions"},
    {"do": "end", "command": "c"},
    {"do": "statements", "reset": False},
    {"do": "lease", "table": "t", "above": 5, "count": 3},
    {"do": "lease", "table": "t", "back": [7, 8]},
    {"do": "token", "user": "u", "for_s": 60},
    {"do": "digest", "table": "t", "after": [1], "upto": [5], "limit": 9, "beyond": {"A": 1, "B": 0}},
    {"do": "entry", "txid": "A-64f0c3a1b2c00000"},
    {"do": "repair", "from": "A"},
    {"do": "resolve", "txid": "A-64f0c3a1b2c00000", "force": False},
    {"do": "anchor", "heads": {"A": [1, b"h"]}},
)


class Orders(Attack):
    """Orders of operators and peers with random errors."""

    def attack(self) -> None:
        """Send orders until the time is over."""
        trio.run(self._send)

    async def _send(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            urls = [self.lab.url(index, only=True, options="discover=no") for index in range(3)]
            clients = [await stack.enter_async_context(open_client(url)) for url in urls]
            while time.monotonic() < self.until:
                asked = mutated_value(self.luck.choice(ORDERS), self.luck)
                if not isinstance(asked, dict):
                    continue
                self.counts["orders"] += 1
                try:
                    await self.luck.choice(clients).upkeep(asked, timeout=2)
                except InternalError as error:
                    self.found(f"{asked!r:.300}: {error.message}")
                except BedrockishError:
                    self.counts["orders refused"] += 1
                except Exception as error:
                    self.found(f"a client raised {type(error).__name__}: {error} at {asked!r:.300}")


def streamed(db: bedrockish.Connection, text: str) -> int:
    """Read a streamed result, and return the number of its rows."""
    with db.stream(text, timeout=2) as rows:
        return sum(1 for _ in rows)


class Http(Attack):
    """Requests by HTTP to existing and unknown paths, with bodies that have random errors."""

    def once(self) -> None:
        luck, node = self.luck, self.luck.choice(self.lab.nodes)
        assert node.http_port is not None
        body: object = {"sql": odd_text(luck, FINE), "params": [1, {"blob": "AA=="}, None]}
        body = mutated_value(luck.choice((body, [body], [body["sql"]] if isinstance(body, dict) else body)), luck)
        data = json.dumps(body, default=str, skipkeys=True).encode("utf-8", "surrogatepass")
        if luck.random() < 0.2:
            data = luck.randbytes(luck.randrange(200))
        path = luck.choice(PATHS) if luck.random() < 0.8 else "/" + quote(luck.randbytes(8))
        path += luck.choice(("", "?timeout=2", "?after=" + quote(luck.randbytes(4)), "?read=" + str(luck.random())))
        link = http.client.HTTPConnection("127.0.0.1", node.http_port, timeout=10)
        try:
            link.request(luck.choice(("GET", "POST", "PUT")), path, data, {"Content-Type": "application/json"})
            reply = link.getresponse()
            said = reply.read(1 << 20)
            self.counts["requests"] += 1
            if reply.status == 500:
                self.found(f"{path} with {data[:200]!r} answers 500: {said[:300]!r}")
        except (OSError, http.client.HTTPException):
            self.counts["requests cut off"] += 1
        finally:
            link.close()


class Settings(Attack):
    """Malformed URLs and configuration files, which this process reads."""

    def once(self) -> None:
        """Read one malformed URL and one malformed configuration file."""
        luck = self.luck
        url = f"bedrockish://u:p@h:1,[::1]:2/?read=session&timeout={luck.randrange(9)}"
        text = 'node = "A"\ndatabase = "a.db"\nlisten = "127.0.0.1:1"\n[peers]\nB = "127.0.0.1:2"\n[limits]\n'
        for what, fine, read in (
            ("url", url, parse_url),
            ("file", text, lambda given: build(text=given, file="f.toml")),
        ):
            given = list(fine)
            odd = ("", "\0", "é", "\ud800", "=", "[", '"', "9" * 50, ":", "%")
            for _ in range(luck.randrange(1, 5)):
                given[luck.randrange(len(given))] = luck.choice(odd)
            self.counts[f"{what}s"] += 1
            try:
                read("".join(given))
            except ConfigError:
                self.counts[f"{what}s refused"] += 1
            except Exception as error:
                self.found(f"{what} {''.join(given)!r}: {type(error).__name__}: {error}")
        time.sleep(0.001)


def attack(lab: Lab, seconds: float, seed: int) -> list[Attack]:
    """Run all attacks at once, and return them with their counts and findings."""
    until = time.monotonic() + seconds
    kinds = (ClientFrames, PeerFrames, Messages, Bytes, Texts, Orders, Http, Settings)
    attacks = [kind(lab, seed + number, until) for number, kind in enumerate(kinds)]
    with ThreadPoolExecutor(len(attacks)) as threads:
        list(threads.map(Attack.run, attacks))
    return attacks
