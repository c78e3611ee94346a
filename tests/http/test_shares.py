"""One client takes its full share of a node, and another one, at another address, still finds room."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish.api.requests import Statement
from bedrockish.engine.execution.open_transaction import ASKED_BYTES, Logged, TransactionWork
from bedrockish.engine.sqlite.limits import Memory
from bedrockish.errors import MemoryFullError, UnavailableError
from bedrockish.http.request_memory import RequestMemory, UnfinishedBodies
from bedrockish.node.transactions.callers import Owner, caller_of, fits, has_room
from tests.http.conftest import Asker, node_with_limits
from tools.cluster import LocalCluster

GREEDY, MODEST = "127.0.0.1", "127.0.0.2"
MANY, MEMORY_MAX, FILES = 8, 96 << 20, 360
BEGIN, TEMPORARY = "BEGIN", "CREATE TEMP TABLE mine(x)"

cluster_test = pytest.mark.cluster


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Yield a node with room for eight of each."""
    directory = tmp_path_factory.mktemp("shares") / "one"
    limits = {"open_transactions_max": MANY, "streams_max": MANY, "temporary_max": MANY, "memory_max": MEMORY_MAX}
    with node_with_limits(directory, **limits) as asker:
        yield asker


def ask(node: Asker, address: str, path: str, body: object) -> tuple[int, Any]:
    """Ask from an address; return the status and the answer."""
    with closing(HTTPConnection(GREEDY, node.port, timeout=60, source_address=(address, 0))) as link:
        link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = link.getresponse()
        return reply.status, json.loads(reply.read())


def stream(node: Asker, address: str, sql: str) -> tuple[str, str | None]:
    """Run a statement on a stream that stays open; return the kind of its answer, and the baton."""
    execute = {"type": "execute", "stmt": {"sql": sql}}
    status, answer = ask(node, address, "/v2/pipeline", {"baton": None, "requests": [execute]})
    assert status == 200, answer
    return str(answer["results"][0]["type"]), answer["baton"]


@cluster_test
@pytest.mark.parametrize("sql", [BEGIN, TEMPORARY])
def test_caller_of_libsql_leaves_room_for_another_address(node: Asker, sql: str) -> None:
    taken = [stream(node, GREEDY, sql) for _ in range(MANY + 2)]
    try:
        assert [kind for kind, _ in taken].count("ok") == 3 * MANY // 4
        kind, baton = stream(node, MODEST, sql)
        taken.append((kind, baton))
        assert kind == "ok"
    finally:
        for _, baton in taken:
            ask(node, MODEST, "/v2/pipeline", {"baton": baton, "requests": [{"type": "close"}]})


@cluster_test
def test_limit_of_open_transactions_counts_links_and_http_together(node: Asker) -> None:
    async def begin_all() -> int:
        begun = 0
        async with open_client(node.cluster.url(0, only=True)) as client:
            for _ in range(MANY):
                with suppress(UnavailableError):
                    await (await client.begin(timeout=0.2)).execute("SELECT 1")
                    begun += 1
            assert stream(node, GREEDY, BEGIN)[0] == "error"
            kind, baton = stream(node, MODEST, BEGIN)
            assert kind == "ok"
            ask(node, MODEST, "/v2/pipeline", {"baton": baton, "requests": [{"type": "close"}]})
        return begun

    assert trio.run(begin_all) == 3 * MANY // 4


@cluster_test
def test_streamed_results_leave_room_for_another_address(node: Asker) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, hex(zeroblob(500)) FROM n"
    with ExitStack() as links:
        statuses = []
        for _ in range(MANY):
            link = links.enter_context(closing(HTTPConnection(GREEDY, node.port, timeout=60)))
            link.request("POST", "/db/stream", json.dumps([endless]), {"Content-Type": "application/json"})
            statuses.append(link.getresponse().status)
        assert statuses.count(200) == 3 * MANY // 4
        link = links.enter_context(closing(HTTPConnection(GREEDY, node.port, source_address=(MODEST, 0))))
        link.request("POST", "/db/stream", json.dumps(["SELECT 1"]), {"Content-Type": "application/json"})
        assert link.getresponse().status == 200


@cluster_test
def test_half_sent_bodies_of_one_caller_leave_memory_for_others(node: Asker) -> None:
    """Without a bound, one client could take all memory, and long requests of all others would be refused."""
    half = json.dumps(["SELECT 1", "--" + "x" * (4 << 20)]).encode()
    head = "POST /db/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {2 * len(half)}\r\n"
    with ExitStack() as links:
        begun = [links.enter_context(socket.create_connection((GREEDY, node.port), 60)) for _ in range(40)]
        for link in begun:
            link.sendall(head.encode() + b"\r\n")
            with suppress(ConnectionError):  # the node has answered, and reads no more of the body
                link.sendall(half)
        link.settimeout(60)
        assert b"bodies that you have begun" in link.recv(65_536)
        taken = node("/status").json["memory"]["taken_bytes"]
        assert taken < MEMORY_MAX // 2
        status, answer = ask(node, MODEST, "/db/query", ["SELECT 7", "SELECT '" + "x" * (3 << 20) + "'"])
        assert status == 200, answer
    assert ask(node, GREEDY, "/db/query", ["SELECT 7", "SELECT '" + "x" * (3 << 20) + "'"])[0] == 200


def grow(node: Asker, address: str, megabytes: int) -> tuple[str, str | None]:
    """Begin a transaction on a stream and insert a row; return the kind of the answer, and the baton."""
    kind, baton = stream(node, address, BEGIN)
    assert kind == "ok"
    execute = {"type": "execute", "stmt": {"sql": f"INSERT INTO grown VALUES (zeroblob({megabytes << 20}))"}}
    status, answer = ask(node, address, "/v2/pipeline", {"baton": baton, "requests": [execute]})
    assert status == 200, answer
    found = answer["results"][0]
    if found["type"] == "error":
        assert found["error"]["code"] == "SQLITE_TOOBIG", found
        assert "kept for your open transactions" in found["error"]["message"]
    return str(found["type"]), answer["baton"]


@cluster_test
def test_rows_of_open_transactions_of_one_caller_leave_memory_for_others(node: Asker) -> None:
    """All clients may keep 48 MiB here; a transaction of the average size, 6 MiB, goes on although its client has too
    much.
    """
    assert ask(node, GREEDY, "/db/execute", ["CREATE TABLE grown(b)"])[0] == 200
    taken = [grow(node, GREEDY, 8) for _ in range(6)]
    try:
        assert [kind for kind, _ in taken] == ["ok"] * 4 + ["error"] * 2
        taken += [grow(node, MODEST, 8), grow(node, GREEDY, 1)]
        assert [kind for kind, _ in taken[6:]] == ["ok", "ok"]
    finally:
        for _, baton in taken:
            ask(node, MODEST, "/v2/pipeline", {"baton": baton, "requests": [{"type": "close"}]})
    kind, baton = grow(node, GREEDY, 8)
    ask(node, MODEST, "/v2/pipeline", {"baton": baton, "requests": [{"type": "close"}]})
    assert kind == "ok"


def test_size_of_an_open_transaction_includes_its_statements_results_and_keys() -> None:
    """The node keeps the 5,000 statements in case the transaction changes the schema; their parameters could take
    gigabytes.
    """
    work = TransactionWork(serializable=True)
    work.size = 10
    work.log_statement(Logged(Statement("SELECT ?", ["x" * 1_000])), 500)
    work.log_statement(Logged(Statement("SELECT :a", {"a": b"x" * 2_000})))
    assert work.kept == 10 + 500 + 3_000 + len("SELECT ?" + "SELECT :a")
    for _ in range(ASKED_BYTES >> 20):
        work.log_statement(Logged(Statement("SELECT ?", ["x" * (1 << 20)])))
    assert work.log is None
    assert work.kept == 10


@cluster_test
def test_connections_of_one_address_leave_room_for_another(tmp_path: Path) -> None:
    """Idle connections suffice to take all files that a node may open for clients."""
    cluster = LocalCluster(tmp_path / "files", ("A",))
    cluster.add_http()
    cluster.write_files()
    cluster.nodes[0].files_max = FILES
    cluster.nodes[0].start()
    with ExitStack() as links:
        links.callback(cluster.stop)
        trio.run(cluster.wait_ready, 0)
        assert cluster.nodes[0].http_port is not None
        node = Asker(cluster.nodes[0].http_port, cluster)
        for _ in range(FILES):
            link = links.enter_context(socket.create_connection((GREEDY, node.port), 60))
            with suppress(ConnectionError):
                link.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                link.recv(1000)
        assert ask(node, MODEST, "/db/query", ["SELECT 7"])[0] == 200
        assert f"{GREEDY} has its share of connections" in cluster.nodes[0].log.read_text()


def test_one_caller_gets_at_most_three_quarters_of_the_memory() -> None:
    one = [0]
    while fits(500, sum(one), one[0]):
        one[0] += 1
    other = 0
    while fits(500, one[0] + other, other):
        other += 1
    assert (one[0], other) == (375, 94)
    assert not fits(500, 499, 0, 2)
    assert has_room(1, [], "a")
    assert not has_room(1, ["a"], "b")


def test_caller_of_a_request_is_its_user_or_else_its_address() -> None:
    owner = Owner("10.0.0.1")
    assert caller_of(owner, "") == caller_of(owner, "(http_token)") == "10.0.0.1"
    assert caller_of(owner, "client:ann") == caller_of(object(), "ann") != caller_of(owner, "bob")


def test_memory_of_finished_bodies_is_released() -> None:
    memory = Memory(max_bytes=400, used=lambda: 0)
    unfinished = UnfinishedBodies(memory)
    requests = [RequestMemory(memory, 100, unfinished) for _ in range(2)]
    requests[0].add_body(75, "a")
    with pytest.raises(MemoryFullError):
        requests[1].add_body(1, "a")
    requests[1].add_body(18, "b")
    requests[0].end_body("a")
    requests[1].end_body("b")
    requests[1].add_body(75, "a")
