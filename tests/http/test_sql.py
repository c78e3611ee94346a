"""SQL over HTTP at a real node: formats, exact values, ids, tokens, and the answer to every mistake."""

import base64
import json
import socket
import time

import pytest

from tests.http.conftest import Asker

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def table(node: Asker) -> None:
    made = node.sql("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", "CREATE TABLE u(a UNIQUE)")
    assert made.status == 200, made.body


def value(node: Asker, sql: str, *params: object) -> object:
    reply = node.sql([sql, *params], to="query")
    assert reply.status == 200, reply.body
    return reply.json["results"][0]["rows"][0][0]


def test_answer_has_every_documented_field(node: Asker) -> None:
    reply = node.sql(["INSERT INTO t(v) VALUES (?), (:v)", {"v": "x", "1": "y"}], command="one")
    assert reply.status == 400
    reply = node.sql(["INSERT INTO t(v) VALUES (:v)", {"v": "x"}], command="one")
    assert reply.status == 200
    (result,) = reply.json["results"]
    assert reply.headers["cache-control"] == "no-store"
    assert result["rowcount"] == 1
    assert (result["columns"], result["rows"]) == ([], [])
    assert result["place"] == reply.json["place"]
    assert reply.json["place"][0] == "A"
    assert reply.json["attempts"] == 1
    assert reply.json["command"] == "one"
    again = node.sql(["INSERT INTO t(v) VALUES (:v)", {"v": "x"}], command="one")
    assert again.json["place"] == reply.json["place"]
    assert again.json["results"] == reply.json["results"]
    assert value(node, "SELECT count(*) FROM t WHERE v = 'x'") == 1


@pytest.mark.parametrize(
    "what",
    [
        *(None, 0, (1 << 63) - 1, -(1 << 63), 1.5, 1e308, "", "naïve 🐘 \u0000 x"),
        *({"base64": "AAH/"}, {"base64": ""}, {"float": "inf"}, {"float": "-inf"}),
    ],
)
def test_values_of_every_type_survive_json(node: Asker, what: object) -> None:
    assert value(node, "SELECT ?", what) == what
    assert value(node, "SELECT :x", {"x": what}) == what


def test_json_parameters_accept_booleans_and_base64_blobs(node: Asker) -> None:
    assert value(node, "SELECT ?", True) == 1
    assert value(node, "SELECT ?", {"base64": base64.b64encode(b"abc").decode()}) == {"base64": "YWJj"}


def test_statements_of_execute_are_separate_transactions_up_to_the_first_failure(node: Asker) -> None:
    reply = node.sql("INSERT INTO u VALUES (1)", "INSERT INTO u VALUES (1)", "INSERT INTO u VALUES (2)", command="m")
    assert reply.status == 400
    assert reply.json["code"] == "constraint"
    assert (reply.json["details"]["statement"], reply.json["details"]["done"]) == (2, 1)
    assert value(node, "SELECT group_concat(a) FROM u") == "1"


def test_a_transaction_is_all_or_none(node: Asker) -> None:
    reply = node.sql("INSERT INTO u VALUES (7)", "INSERT INTO u VALUES (7)", to="transaction")
    assert (reply.status, reply.json["code"]) == (400, "constraint")
    assert value(node, "SELECT count(*) FROM u WHERE a = 7") == 0
    reply = node.sql("INSERT INTO u VALUES (8)", "SELECT max(a) FROM u", to="transaction")
    assert [one["rows"] for one in reply.json["results"]] == [[], [[8]]]


def test_http_query_endpoint_refuses_writes(node: Asker) -> None:
    before = value(node, "SELECT count(*) FROM u")
    for sql in ("INSERT INTO u VALUES (99)", "DELETE FROM u WHERE a = -1", "CREATE TABLE nope(a)"):
        reply = node.sql("SELECT 1", sql, to="query")
        assert (reply.status, reply.json["code"]) == (400, "usage")
    assert value(node, "SELECT count(*) FROM u") == before


def test_command_id_is_taken_from_the_idempotency_key_header(node: Asker) -> None:
    first = node("/db/execute", ["INSERT INTO t(v) VALUES ('key')"], Idempotency_Key='"abc"')
    again = node("/db/execute", ["INSERT INTO t(v) VALUES ('key')"], Idempotency_Key="abc")
    assert first.json["command"] == "abc"
    assert first.json["place"] == again.json["place"]
    both = node("/db/execute?command=other", ["SELECT 1"], Idempotency_Key="abc")
    assert (both.status, both.json["code"]) == (400, "usage")


def test_token_of_an_answer_is_accepted(node: Asker) -> None:
    token = node.sql("INSERT INTO t(v) VALUES (1)").json["token"]
    assert node.sql("SELECT 1", to="query", token=token, read="session").status == 200
    assert node.sql("SELECT 1", to="query", read="strict", isolation="snapshot", timeout="2.5").status == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1" + b"0" * 5000 + b"]", "not JSON"),
        (b'"SELECT 1"', "JSON array"),
        (b"[]", "JSON array"),
        (b'[""]', "statement 1 is empty"),
        (b'["SELECT 1", "SELECT 2; SELECT 3"]', "statement 2: a text should hold one statement"),
        (b"[[]]", "statement 1 should be"),
        (b"[7]", "statement 1 should be"),
        (b'["SELECT 1", [7]]', "statement 2 should be"),
        (b'[["SELECT ?", NaN]]', "NaN"),
        (b'[["SELECT ?", -Infinity]]', "-Infinity"),
        (b'[["SELECT ?", 1e999]]', "too large"),
        (b'[["SELECT ?", "\\ud800"]]', "surrogate"),
        (b"[\"SELECT '\\udc00'\"]", "surrogate"),
        (b'[["SELECT ?", 9223372036854775808]]', "64 bits"),
        (b'[["SELECT ?", [1]]]', "parameter 1 should be"),
        (b'[["SELECT ?, ?", 1, {"a": 1}]]', "parameter 2 should be"),
        (b'[["SELECT ?", {"base64": "?"}]]', "not base64"),
        (b'[["SELECT ?", {"base64": 7}]]', "parameter 1 should be"),
        (b'[["SELECT ?", {"float": {}}]]', "parameter 1 should be"),
        (b'[["SELECT ?", {"float": "nan"}]]', "parameter 1 should be"),
        (b'["SELECT missing"]', "no such column"),
        (b'[["SELECT ?", 1' + b"0" * 4299 + b"]]", "64 bits"),
        (b'[["SELECT ?"]]', ""),
        (b'[["SELECT 1", 2]]', ""),
    ],
)
def test_malformed_bodies_name_the_mistake(node: Asker, body: bytes, says: str) -> None:
    for path in ("/db/execute", "/db/query", "/db/transaction"):
        reply = node(path, body)
        assert reply.status == 400, reply.body
        assert set(reply.json) == {"code", "message", "details"}
        assert says in reply.json["message"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("reed=stale", "did you mean 'read'"),
        ("read=never", "no read level"),
        ("isolation=chaos", "no isolation"),
        ("timeout=soon", "not a number"),
        ("timeout=nan", "positive"),
        ("timeout=0", "positive"),
        ("timeout=-1", "positive"),
        ("command=", "1 to 200"),
        ("command=" + "x" * 201, "1 to 200"),
        ("token=!", "token"),
        ("token=AAAA", "token"),
        ("read=stale&read=stale", "twice"),
    ],
)
def test_malformed_options_name_the_mistake(node: Asker, query: str, says: str) -> None:
    reply = node(f"/db/query?{query}", ["SELECT 1"])
    assert (reply.status, reply.json["code"]) == (400, "usage")
    assert says in reply.json["message"]


def test_http_refuses_other_content_types_encodings_and_methods(node: Asker) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert node("/db/execute", b'["DELETE FROM t"]', Content_Type=kind).status == 415
    coded = node("/db/execute", b'["DELETE FROM t"]', Content_Encoding="gzip")
    assert (coded.status, "encoded as 'gzip'" in coded.json["message"]) == (415, True)
    assert node("/db/query", b'["SELECT 1"]', Content_Encoding="Identity").status == 200
    assert node("/db/execute").status == 405
    assert node("/status", b"x").status == 405
    reply = node("/nothing/here")
    assert (reply.status, reply.json["code"]) == (404, "usage")


def test_a_huge_body_is_refused_before_it_is_read(node: Asker) -> None:
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as link:
        head = "POST /db/execute HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        link.sendall(f"{head}Content-Length: 99999999999\r\n\r\n[".encode())
        said = link.recv(65536).decode()
    assert said.startswith("HTTP/1.1 413")
    assert node("/livez").status == 200


def test_large_blobs_and_results_are_served(node: Asker) -> None:
    blob = {"base64": base64.b64encode(bytes(3 << 20)).decode()}
    assert node.sql(["INSERT INTO t(v) VALUES (?)", blob]).status == 200
    assert value(node, "SELECT v FROM t WHERE length(v) = ?", 3 << 20) == blob
    many = node.sql("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000) SELECT i FROM n")
    assert [row for (row,) in many.json["results"][0]["rows"]] == list(range(1, 200_001))


def test_a_result_over_the_limit_is_an_error(node: Asker) -> None:
    reply = node.sql("SELECT zeroblob(40000000)")
    assert (reply.status, reply.json["code"]) == (413, "too_large")


def test_text_that_is_not_unicode_is_encoded_as_json(node: Asker) -> None:
    reply = node.sql("SELECT CAST(x'ff41' AS TEXT)")
    assert reply.status in (200, 400)
    json.loads(reply.body)


def lines(body: bytes) -> list[object]:
    return [json.loads(line) for line in body.splitlines()]


def test_a_stream_has_a_line_for_each_row(node: Asker) -> None:
    """The last line says that the result is complete, or has an error; a statement that cannot begin gets an error
    status and no stream.
    """
    many = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) SELECT i, x'00', printf('%0500d', i)"
    )
    reply = node.sql([f"{many} FROM n", 5000], to="stream")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/x-ndjson"
    first, *rows, last = lines(reply.body)
    assert isinstance(first, dict)
    assert first["columns"][0] == "i"
    assert first["token"]
    assert rows == [[i, {"base64": "AA=="}, f"{i:0500}"] for i in range(1, 5001)]
    assert last == {"rows": 5000}
    assert lines(node.sql("SELECT 1 WHERE 0", to="stream").body)[1:] == [{"rows": 0}]
    *_, last = lines(node.sql("SELECT abs(column1) FROM (VALUES (1), (-9223372036854775808))", to="stream").body)
    assert isinstance(last, dict)
    assert (last["rows"], last["error"]["code"]) == (0, "sql")
    for wrong in (["SELEC"], ["DELETE FROM t"], ["SELECT 1", "SELECT 2"]):
        reply = node.sql(*wrong, to="stream")
        assert (reply.status, reply.json["code"] in ("sql", "unsupported", "usage")) == (400, True)
    assert node("/status").json["open_streams"] == 0


def test_stream_of_a_caller_that_left_is_closed_soon(node: Asker) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    body = json.dumps([endless]).encode()
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as caller:
        head = f"POST /db/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        caller.sendall(head.encode() + b"\r\n\r\n" + body)
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
        assert node("/status").json["open_streams"] == 1
    deadline = time.monotonic() + 60
    while node("/status").json["open_streams"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
