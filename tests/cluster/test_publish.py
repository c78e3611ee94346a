"""Messages to a webhook and to Kafka, whose sender is killed and whose receiver fails: all come, in order."""

import contextlib
import hashlib
import hmac
import json
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from bedrockish import connect
from tests.cluster.story import all_safe, level, ready
from tools.cluster import LocalCluster, clean_environment

pytestmark = pytest.mark.cluster
SECRET = "geheim"
TABLES = (
    "CREATE TABLE stock(id INTEGER PRIMARY KEY, n INTEGER)",
    "CREATE TABLE pair(a INTEGER, b TEXT, v, PRIMARY KEY (b, a)) WITHOUT ROWID",
)


class Hook(BaseHTTPRequestHandler):
    """A webhook that records accepted requests, and accepts only half of them."""

    taken: ClassVar[list[dict[str, Any]]] = []
    drawn = random.Random(3)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        at, digest = (part.partition("=")[2] for part in self.headers["Bedrockish-Signature"].split(","))
        true = hmac.new(SECRET.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
        what = self.drawn.random()
        if digest != true or self.path != "/hook?token=x":
            self.send_response(403)
        elif what < 0.3:
            self.send_response(self.drawn.choice([500, 503, 429]))
        else:
            self.taken.extend(json.loads(body)["messages"])
            if what < 0.5:  # taken, and the answer is lost
                self.connection.close()
                return
            self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def hook() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?token=x"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def publish(cluster: LocalCluster, to: str, place: Path, *more: str, secret: str = SECRET) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bedrockish.cli.main", "publish", cluster.url(), "--to", to, "--place", str(place)]
    environment = {**clean_environment(), "BEDROCKISH_WEBHOOK_SECRET": secret}
    return subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True, env=environment)


def fill(cluster: LocalCluster, turn: int) -> None:
    """Change some rows at each node, and some of them twice."""
    for node in range(len(cluster.nodes)):
        with connect(cluster.url(node)) as db:
            for number in range(8):
                db.execute("INSERT INTO stock(n) VALUES (?)", (turn,))
                db.execute("UPDATE stock SET n = n + 1 WHERE id = 1 + ?", (number % 3,))
            db.execute("INSERT INTO pair VALUES (?, ?, 'x')", (turn, f"{node}"))
            db.execute("UPDATE pair SET v = NULL WHERE a = ? AND b = ?", (turn, f"{node}"))
            db.execute("DELETE FROM stock WHERE id = (SELECT max(id) FROM stock)")


def judge(found: Sequence[tuple[str, str | None, dict[str, Any]]], database: Path) -> None:
    """Play messages into tables, each once by its id, and compare them with a node's file."""
    first: dict[str, tuple[str | None, dict[str, Any]]] = {}
    for name, key, value in found:
        assert first.setdefault(name, (key, value))[1] == value, "what comes again is the same"
    tables: dict[str, dict[str | None, dict[str, Any]]] = {}
    for key, value in first.values():
        if "ddl" in value:
            continue
        rows = tables.setdefault(value["source"]["table"], {})
        assert rows.get(key) == value["before"], "each message continues the one before of its row"
        assert (
            value["op"]
            == {(False, True): "c", (True, True): "u", (True, False): "d"}[
                value["before"] is not None, value["after"] is not None
            ]
        )
        if value["after"] is None:
            del rows[key]
        else:
            rows[key] = value["after"]
    with contextlib.closing(sqlite3.connect(database)) as db:
        for table, columns in (("stock", "id, n"), ("pair", "a, b, v")):
            now = sorted(tuple(row.values()) for row in tables[table].values())
            assert now == sorted(db.execute(f"SELECT {columns} FROM {table}").fetchall())
    statements = [text for _, value in first.values() for text in value.get("ddl", ())]
    assert statements == list(TABLES)


@pytest.fixture
def filled(cluster: LocalCluster) -> LocalCluster:
    trio.run(ready, cluster)
    with connect(cluster.url()) as db:
        for sql in TABLES:
            db.execute(sql)
    return cluster


def test_a_webhook_gets_everything_in_order(filled: LocalCluster, tmp_path: Path) -> None:
    cluster, place, drawn = filled, tmp_path / "place", random.Random(5)
    Hook.taken.clear()
    with hook() as url:
        for turn in range(4):
            process = publish(cluster, url, place, "--follow")
            fill(cluster, turn)
            time.sleep(0.5 + drawn.random())
            assert process.poll() is None
            if not turn:
                _, errors = publish(cluster, url, place).communicate(timeout=60)
                assert "give each a place of its own" in errors
            process.kill()
            process.communicate()
        trio.run(level, cluster)
        trio.run(all_safe, cluster)
        process = publish(cluster, url, place)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        wrong = publish(cluster, url, tmp_path / "new", secret="other")
        assert "the webhook answers 403" in wrong.communicate(timeout=60)[1]
        assert wrong.returncode == 2
        assert not (tmp_path / "new").exists()
    messages = [(one.pop("id"), None, one) for one in Hook.taken]
    keyed = []
    for name, _, value in messages:
        row = value.get("before") or value.get("after") or {}
        keyed.append((name, json.dumps([row.get("id"), row.get("a"), row.get("b")]), value))
    assert len(keyed) > len({name for name, _, _ in keyed}), "some came twice, as answers were lost"
    judge(keyed, cluster.nodes[0].database)


def test_kafka_gets_everything_in_order(filled: LocalCluster, tmp_path: Path) -> None:
    """Against the brokers of librdkafka's own mock cluster, over sockets."""
    cluster, place = filled, tmp_path / "place"
    brokers = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 3, "log_level": 0})
    found = brokers.list_topics(timeout=10).brokers.values()
    at = ",".join(f"{one.host}:{one.port}" for one in found)
    for turn in range(3):
        process = publish(cluster, f"kafka://{at}/shop", place, "--follow")
        fill(cluster, turn)
        time.sleep(1.5)
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        process.communicate()
    trio.run(level, cluster)
    trio.run(all_safe, cluster)
    process = publish(cluster, f"kafka://{at}/shop", place)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    reader = Consumer({"bootstrap.servers": at, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0})
    topics = [reader.list_topics(name, timeout=10).topics[name] for name in ("shop", "shop.stock", "shop.pair")]
    parts = [TopicPartition(topic.topic, part, 0) for topic in topics for part in topic.partitions]
    count = sum(reader.get_watermark_offsets(part, timeout=10)[1] for part in parts)
    reader.assign(parts)
    messages: list[tuple[str, str | None, dict[str, Any]]] = []
    until = time.monotonic() + 60
    while len(messages) < count:
        assert time.monotonic() < until
        one = reader.poll(0.5)
        if one is not None and one.error() is None:
            key, value, headers = one.key(), one.value(), dict(one.headers() or ())
            assert value is not None
            name = headers["id"]
            assert isinstance(name, bytes)
            messages.append((name.decode(), key.decode() if isinstance(key, bytes) else key, json.loads(value)))
    reader.close()
    messages.sort(key=lambda one: (one[2]["source"]["clock"], int(one[0].partition(":")[2])))  # topics side by side
    judge(messages, cluster.nodes[0].database)
