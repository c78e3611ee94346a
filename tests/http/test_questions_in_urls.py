"""Statements in URLs, rows as objects, and the answers to pages of other sites and to old or hostile clients."""

import json
import socket
import time
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from bedrockish.api.json_forms import unique_names
from tests.http.conftest import Asker, Reply

pytestmark = pytest.mark.cluster

MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) SELECT i, 'row ' || i AS t FROM n"


@pytest.fixture(scope="module", autouse=True)
def table(node: Asker) -> None:
    assert node.sql("CREATE TABLE pet(id INTEGER PRIMARY KEY, name)", "INSERT INTO pet VALUES (1, 'Rex')").status == 200


def ask(node: Asker, sql: str, *params: object, to: str = "query", **options: str) -> Reply:
    given = {"sql": sql, **({"params": json.dumps(params)} if params else {}), **options}
    return node(f"/db/{to}?{urlencode(given)}")


def raw(node: Asker, request: bytes) -> bytes:
    """Send bytes unchanged, and return all bytes until the node ends the connection."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as link:
        link.sendall(request)
        said = b""
        while piece := link.recv(1 << 16):
            said += piece
    return said


def test_query_in_a_url_is_answered_as_in_a_body(node: Asker) -> None:
    reply = ask(node, "SELECT name FROM pet WHERE id = ?", 1)
    assert reply.status == 200, reply.body
    assert reply.headers["cache-control"] == "no-store"
    posted = node.sql(["SELECT name FROM pet WHERE id = ?", 1], to="query").json
    assert reply.json["results"] == posted["results"] == [{**posted["results"][0], "rows": [["Rex"]]}]
    named = node("/db/query?" + urlencode({"sql": "SELECT :a || :b AS both", "params": '{"a": "x & y", "b": "+"}'}))
    assert named.json["results"][0]["rows"] == [["x & y+"]]
    token = node.sql("UPDATE pet SET name = name").json["token"]
    assert ask(node, "SELECT 1", token=token, read="strict", timeout="9", isolation="snapshot").status == 200
    blob = ask(node, "SELECT ?, ?", {"base64": "AAH/"}, {"float": "inf"})
    assert blob.json["results"][0]["rows"] == [[{"base64": "AAH/"}, {"float": "inf"}]]


@pytest.mark.parametrize(
    "sql", ["DELETE FROM pet", "CREATE TABLE no(a)", "INSERT INTO pet VALUES (9, 'x') RETURNING 1"]
)
def test_query_in_a_url_cannot_write(node: Asker, sql: str) -> None:
    """The compiled program decides, not the beginning of the text."""
    before = node("/status").json["applied"]
    for text in (sql, f"/* SELECT */ {sql}", f"WITH a AS (SELECT 1) {sql}" if "CREATE" not in sql else sql):
        for to in ("query", "stream"):
            reply = ask(node, text, to=to)
            assert (reply.status, reply.json["code"] in ("usage", "unsupported")) == (400, True), reply.body
    assert node("/status").json["applied"] == before


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "the URL has no statement"),
        ("sql=", "statement 1 is empty"),
        ("sql=SELECT+1&sql=SELECT+2", "given twice"),
        ("sql=SELECT+1;SELECT+2", "one statement"),
        ("sql=SELECT+1&params=1", "params should be"),
        ("sql=SELECT+1&params=", "params is not JSON"),
        ("sql=SELECT+?&params=[[1]]", "parameter 1 should be"),
        ("sql=SELECT+?&params=[9223372036854775808]", "64 bits"),
        ("sql=SELECT+1&command=x", "no command id"),
        ("sql=SELECT+1&rows=lists", "rows cannot be 'lists'"),
        ("sql=SELECT+1&rows=objects&rows=arrays", "given twice"),
        ("sql=SELECT+1&reed=stale", "did you mean 'read'"),
        ("sql=SELECT+%27%ff%27", "not UTF-8"),
        ("sql=SELECT+%27%ed%a0%80%27", "not UTF-8"),
        ("sql=SELECT+%00", ""),
    ],
)
def test_malformed_url_queries_name_the_mistake(node: Asker, query: str, says: str) -> None:
    for to in ("query", "stream"):
        reply = node(f"/db/{to}?{query}")
        assert (reply.status, set(reply.json)) == (400, {"code", "message", "details"}), reply.body
        assert says in reply.json["message"]


def test_command_ids_that_are_not_utf_8_are_refused(node: Asker) -> None:
    """If they were decoded, both ids would be the replacement character, and the second statement would get the first
    one's answer.
    """
    for name in ("%ff", "%fe"):
        reply = node(f"/db/execute?command={name}", ["SELECT 1"])
        assert (reply.status, "not UTF-8" in reply.json["message"]) == (400, True)


def test_every_call_can_return_rows_as_objects(node: Asker) -> None:
    """Every call can return them; a repeated name gets a number, so that no value is lost."""
    sql = "SELECT id, name, 7 AS id, x'00' AS 'id:2' FROM pet"
    row = {"id": 1, "name": "Rex", "id:2": 7, "id:2:2": {"base64": "AA=="}}
    for reply in (
        ask(node, sql, rows="objects"),
        *(node.sql(sql, to=to, rows="objects") for to in ("query", "execute", "transaction")),
    ):
        (result,) = reply.json["results"]
        assert (result["columns"], result["rows"]) == (["id", "name", "id", "id:2"], [row])
    for reply in (ask(node, sql, to="stream", rows="objects"), node.sql(sql, to="stream", rows="objects")):
        first, *rows, last = map(json.loads, reply.body.splitlines())
        assert (first["columns"], rows, last) == (["id", "name", "id", "id:2"], [{"row": row}], {"rows": 1})


def test_duplicate_column_names_are_made_unique() -> None:
    assert unique_names(["a", "b"]) == ["a", "b"]
    assert unique_names(["a", "a", "a", "a:2"]) == ["a", "a:2", "a:3", "a:2:2"]
    assert len(set(unique_names(["c"] * 2000))) == 2000


def test_million_rows_are_not_kept_in_memory(node: Asker) -> None:
    """The rows arrive in order and complete, and the node's memory does not grow with their size."""
    process = node.cluster.nodes[0].process
    assert process is not None
    ask(node, MANY, 20_000, to="stream")  # the memory that any stream takes is allocated now
    before = high_water(process.pid)
    query = urlencode({"sql": MANY, "params": "[1000000]", "rows": "objects"})
    head = f"GET /db/stream?{query} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as link, link.makefile("rb") as said:
        link.sendall(head.encode())
        assert b"200" in said.readline()
        while said.readline().strip():
            pass
        assert json.loads(said.readline())["columns"] == ["i", "t"]
        size = 0
        for number in range(1, 1_000_001):
            line = said.readline()
            size += len(line)
            assert line == b'{"row":{"i":%d,"t":"row %d"}}\n' % (number, number)
        assert json.loads(said.readline()) == {"rows": 1_000_000}
        assert said.readline() == b""
    assert size > 30 << 20
    assert high_water(process.pid) - before < size / 3


def high_water(pid: int) -> int:
    """Return the peak memory of a process in bytes; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_Fetch_Site": "cross-site"}, 400),
        ({"Sec_Fetch_Site": "same-site"}, 400),
        ({"Origin": "https://elsewhere.example"}, 400),
        ({"Origin": "null"}, 400),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Sec_Fetch_Site": "same-origin", "Origin": "https://the.proxy.example"}, 200),
        ({}, 200),
    ],
)
def test_page_of_another_site_cannot_read_answers(node: Asker, headers: dict[str, str], status: int) -> None:
    """A browser names the origin of a request; the node answers typed URLs and programs."""
    assert ask(node, "SELECT 1").headers["cross-origin-resource-policy"] == "same-origin"
    for path in ("/db/query?sql=SELECT+1", "/db/stream?sql=SELECT+1", "/status", "/changes", "/metrics"):
        assert node(path, **headers).status == status, path
    assert node("/db/execute", ["SELECT 1"], **headers).status == status
    for path in ("/", "/livez"):  # these contain no data, and other sites may link to them
        assert node(path, **headers).status in (200, 400 if path == "/livez" and "Origin" in headers else 200)


def test_preflight_and_head_requests_execute_no_statement(node: Asker) -> None:
    reply = node("/db/execute", method="OPTIONS", Origin="http://127.0.0.1", Access_Control_Request_Method="POST")
    assert reply.status in (400, 405)
    assert not [name for name in reply.headers if name.lower().startswith("access-control-")]
    executions = node("/status").json["counts"]["executions"]
    for path in ("/db/query?sql=SELECT+1", "/db/stream?sql=SELECT+1", "/changes?follow=true"):
        assert node(path, method="HEAD").status == 405
    assert node("/status").json["counts"]["executions"] == executions
    assert node("/status").json["open_streams"] == 0
    assert node("/status", method="HEAD").status == 200


def test_old_and_broken_requests_are_answered(node: Asker) -> None:
    """HTTP/1.0 without a Host, a statement that is too long for a URL, and bytes that are not HTTP."""
    said = raw(node, b"GET /db/stream?sql=SELECT+7+AS+a HTTP/1.0\r\n\r\n")
    head, _, body = said.partition(b"\r\n\r\n")
    assert b" 200" in head.splitlines()[0]
    assert b"chunked" not in head
    assert [json.loads(line) for line in body.splitlines()][1:] == [[7], {"rows": 1}]
    for length in (200_000, 5_000_000):
        long = b"GET /db/query?sql=SELECT+'" + b"x" * length + b"' HTTP/1.1\r\nHost: x\r\n\r\n"
        with socket.create_connection(("127.0.0.1", node.port), timeout=60) as link:
            try:
                link.sendall(long)
                first = link.recv(100)
            except (ConnectionResetError, BrokenPipeError):
                first = b""
        assert first == b"" or b" 4" in first[:13]
    long_but_fitting = ask(node, f"SELECT length('{'x' * 20_000}')")
    assert long_but_fitting.json["results"][0]["rows"] == [[20_000]]
    for nonsense in (
        b"\x16\x03\x01\x02\x00" * 40,
        b"GET /db/query?sql=\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" * 9000,
    ):
        with socket.create_connection(("127.0.0.1", node.port), timeout=60) as link:
            link.sendall(nonsense)
            link.shutdown(socket.SHUT_WR)
            said = link.recv(1000)
        assert not said or b" 400" in said[:13] or b" 431" in said[:13]
    assert node("/livez").status == 200
    log = node.cluster.nodes[0].log.read_text()
    assert "Traceback" not in log, log[-2000:]


def test_request_cannot_inject_headers_or_markup(node: Asker) -> None:
    evil = "x\r\nSet-Cookie: a=b\r\n\r\n<script>alert(1)</script>"
    for path in (f"/{quote(evil)}", f"/db/query?sql={quote(evil)}", f"/db/query?{quote(evil)}=1"):
        reply = node(path, Accept="text/html")
        assert reply.status in (400, 404)
        assert "set-cookie" not in {name.lower() for name in reply.headers}
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["x-content-type-options"] == "nosniff"
        reply.json  # noqa: B018  (it is JSON)


@pytest.mark.parametrize(
    "accept", ["text/html", "*/*", "", "application/xml;q=0.9, */*;q=0", "nonsense;;;,,", "q" * 5000]
)
def test_answer_is_json_for_any_accept_header(node: Asker, accept: str) -> None:
    reply = node("/db/query?sql=SELECT+1", Accept=accept)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")


def test_failed_stream_ends_with_an_error_line_and_a_broken_one_without_last_line(node: Asker) -> None:
    late = "SELECT abs(CASE WHEN i = 3000 THEN -9223372036854775808 ELSE i END) FROM (" + MANY + ")"
    *_, last = map(json.loads, ask(node, late, 5000, to="stream").body.splitlines())
    assert last["error"]["code"] == "sql"
    assert last["rows"] < 3000
    until = time.monotonic() + 60
    while node("/status").json["open_streams"]:
        assert time.monotonic() < until
        time.sleep(0.05)
