"""libSQL's protocol: by hand, and with clients that were not written for this project."""

import gc
import json
import shutil
import socket
import sys
import time
from collections.abc import AsyncGenerator
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import libsql
import pytest
from sqlalchemy import create_engine, text

from bedrockish.api.requests import Statement
from bedrockish.errors import ConflictError, OutcomeUnknownError, TooLargeError, UnavailableError, UsageError
from bedrockish.http.libsql import pipeline as pipelines_module
from bedrockish.http.libsql import session
from bedrockish.http.libsql.pipeline import OpenStream, Pipelines, _answered
from bedrockish.http.libsql.session import DeclaredTypes, LibsqlSession, parameter_names, whole_transaction
from bedrockish.http.libsql.structures import STEPS_MAX, BatchStep, Texts, read_batch, read_step, write_error
from bedrockish.node.runtime import Runtime
from tests.http import javascript
from tests.http.conftest import Asker

pytestmark = pytest.mark.cluster


def execute(sql: str, *args: dict[str, Any]) -> dict[str, Any]:
    return {"type": "execute", "stmt": {"sql": sql, "args": list(args)}}


def pipeline(node: Asker, *requests: dict[str, Any], baton: str | None = None, version: int = 2) -> dict[str, Any]:
    reply = node(f"/v{version}/pipeline", {"baton": baton, "requests": list(requests)})
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


def rows(result: dict[str, Any]) -> list[list[Any]]:
    assert result["type"] == "ok", result
    return [[value.get("value") for value in row] for row in result["response"]["result"]["rows"]]


@pytest.fixture(scope="module", autouse=True)
def left(node: Asker) -> str:
    """Open a stream before all other tests, like a client that left; return its baton."""
    pipeline(node, execute("CREATE TABLE IF NOT EXISTS left_open(x)"), {"type": "close"})
    begun = pipeline(node, execute("BEGIN"), execute("INSERT INTO left_open VALUES (1)"))
    assert node("/status").json["open_transactions"] == 1
    return str(begun["baton"])


@pytest.fixture(scope="module", autouse=True)
def quiet(node: Asker) -> str:
    """Open a stream without a transaction before all other tests; return its baton."""
    made = execute("CREATE TABLE IF NOT EXISTS quiet(id INTEGER PRIMARY KEY)")
    return str(pipeline(node, made, execute("INSERT INTO quiet VALUES (77)"))["baton"])


# -- by hand -------------------------------------------------------------------------------------------------------


def test_supported_versions_of_libsql_answer_200_and_others_404(node: Asker) -> None:
    """Clients ask for versions before they choose; without Protobuf ``@libsql/client`` uses JSON."""
    assert [node(path).status for path in ("/v2", "/v3", "/v3-protobuf", "/v4")] == [200, 200, 404, 404]


def test_baton_continues_a_transaction_over_several_calls(node: Asker) -> None:
    """The baton joins the calls of a stream, and is valid once."""
    pipeline(node, execute("CREATE TABLE IF NOT EXISTS held(x)"), execute("DELETE FROM held"), {"type": "close"})
    first = pipeline(node, execute("BEGIN"), execute("INSERT INTO held VALUES (1)"))
    assert first["baton"]
    elsewhere = pipeline(node, execute("SELECT count(*) FROM held"), {"type": "close"})
    assert rows(elsewhere["results"][0]) == [["0"]]
    assert elsewhere["baton"] is None
    second = pipeline(node, {"type": "get_autocommit"}, execute("COMMIT"), baton=first["baton"], version=3)
    assert second["results"][0]["response"] == {"type": "get_autocommit", "is_autocommit": False}
    again = node("/v2/pipeline", {"baton": first["baton"], "requests": []})
    assert again.status == 400
    assert "did not happen" in again.json["message"]
    last = pipeline(node, execute("SELECT count(*) FROM held"), baton=second["baton"])
    assert rows(last["results"][0]) == [["1"]]


@pytest.mark.parametrize("kind", ["execute", "batch"])
def test_statement_that_would_be_rolled_back_by_a_close_is_refused(node: Asker, kind: str) -> None:
    """npm's libsql closes the stream after a statement that it prepared before BEGIN."""
    pipeline(node, execute("CREATE TABLE IF NOT EXISTS closed(x)"), execute("DELETE FROM closed"), {"type": "close"})
    begun = pipeline(node, execute("BEGIN"))
    write = execute("INSERT INTO closed VALUES (1)")
    asked = write if kind == "execute" else {"type": "batch", "batch": {"steps": [{"stmt": write["stmt"]}]}}
    answered = pipeline(node, asked, {"type": "get_autocommit"}, {"type": "close"}, baton=begun["baton"])
    first, _, close = answered["results"]
    assert "rolled back" in first["error"]["message"]
    assert "stays open" in close["error"]["message"]
    ended = pipeline(node, execute("ROLLBACK"), {"type": "close"}, baton=answered["baton"])
    assert (ended["results"][0]["type"], ended["baton"]) == ("ok", None)
    again = pipeline(node, execute("BEGIN"))["baton"]
    whole = pipeline(node, write, execute("COMMIT"), {"type": "close"}, baton=again)["results"]
    assert [one["type"] for one in whole] == ["ok", "ok", "ok"]
    assert rows(pipeline(node, execute("SELECT count(*) FROM closed"), {"type": "close"})["results"][0]) == [["1"]]


def test_cursor_after_a_refusal_in_a_pipeline_yields_the_errors_of_its_steps(node: Asker) -> None:
    begun = pipeline(node, execute("BEGIN"))["baton"]
    kept = pipeline(node, execute("DELETE FROM quiet"), {"type": "close"}, baton=begun)["baton"]
    reply = node("/v3/cursor", {"baton": kept, "batch": {"steps": [{"stmt": {"sql": "SELECT missing"}}]}})
    assert [json.loads(line).get("type") for line in reply.body.splitlines()] == [None, "step_error"]


def test_npms_libsql_gets_the_reason_of_a_refusal_in_its_transaction(node: Asker) -> None:
    """Its ``transaction()`` sends ROLLBACK after an error, and raises the error of ROLLBACK if that fails, too."""
    begun = pipeline(node, execute("BEGIN"))["baton"]
    results: list[dict[str, Any]] = []
    for sql in ("INSERT INTO quiet VALUES (78)", "ROLLBACK"):
        asked = {"type": "batch", "batch": {"steps": [{"stmt": {"sql": sql}}]}}
        answered = pipeline(node, asked, {"type": "get_autocommit"}, {"type": "close"}, baton=begun)
        begun, results = answered["baton"], [*results, answered["results"][0]]
    assert "prepare the statement afterwards" in results[0]["error"]["message"]
    assert results[1]["response"]["result"]["step_errors"] == [None]


def test_npms_libsql_gets_the_conflict_of_its_commit(node: Asker) -> None:
    """The call with COMMIT closes the stream, and ROLLBACK follows."""
    pipeline(node, execute("CREATE TABLE IF NOT EXISTS npms(x)"), execute("INSERT INTO npms VALUES (0)"))
    write = execute("INSERT INTO npms SELECT count(*) FROM npms")
    begun = pipeline(node, execute("BEGIN"), write)["baton"]
    pipeline(node, write, {"type": "close"})
    results: list[dict[str, Any]] = []
    for sql in ("COMMIT", "ROLLBACK"):
        asked = {"type": "batch", "batch": {"steps": [{"stmt": {"sql": sql}}]}}
        answered = pipeline(node, asked, {"type": "get_autocommit"}, {"type": "close"}, baton=begun)
        begun, results = answered["baton"], [*results, answered["results"][0]]
    assert results[0]["error"]["code"] == "SQLITE_BUSY"
    assert results[1]["response"]["result"]["step_errors"] == [None]
    assert begun is None


def test_savepoint_outside_of_a_transaction_begins_one(node: Asker) -> None:
    """As in SQLite, RELEASE of the savepoint that began the transaction commits it."""
    sql = ["SAVEPOINT a", "INSERT INTO quiet VALUES (80)", "SAVEPOINT a", "INSERT INTO quiet VALUES (81)"]
    sql += ["ROLLBACK TO a", "RELEASE a", "INSERT INTO quiet VALUES (82)", "RELEASE nothing"]
    told = pipeline(node, *map(execute, sql), {"type": "get_autocommit"})
    assert [one["type"] for one in told["results"]] == ["ok"] * 7 + ["error", "ok"]
    assert told["results"][7]["error"]["message"].endswith("no such savepoint: nothing")
    assert not told["results"][8]["response"]["is_autocommit"]
    found = execute("SELECT group_concat(id) FROM quiet WHERE id >= 80")
    assert rows(pipeline(node, found, {"type": "close"})["results"][0]) == [[None]]
    ends = pipeline(node, execute("RELEASE A"), {"type": "get_autocommit"}, execute("RELEASE a"), baton=told["baton"])
    assert [one["type"] for one in ends["results"]] == ["ok", "ok", "error"]
    assert ends["results"][1]["response"]["is_autocommit"]
    assert rows(pipeline(node, found, {"type": "close"})["results"][0]) == [["80,82"]]
    (alone, _) = pipeline(node, execute("SAVEPOINT a"), {"type": "close"})["results"]
    assert "the stream is closed" in alone["error"]["message"]


def test_transaction_has_the_setting_of_foreign_keys_from_before_it(node: Asker) -> None:
    sql = [
        "PRAGMA foreign_keys = OFF",
        "BEGIN",
        "PRAGMA foreign_keys",
        "PRAGMA foreign_keys = ON",
        "PRAGMA foreign_keys",
    ]
    told = pipeline(node, *map(execute, sql), {"type": "close"})["results"]
    assert [rows(told[place]) for place in (2, 4)] == [[["0"]], [["0"]]]


def test_foreign_keys_stay_off_after_a_transaction_that_changes_the_schema(node: Asker) -> None:
    """Otherwise they would act at the next statement, and delete rows that SQLite keeps."""
    sql = [
        "CREATE TABLE IF NOT EXISTS parent(id INTEGER PRIMARY KEY)",
        "CREATE TABLE IF NOT EXISTS child(p REFERENCES parent ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (1)",
        "PRAGMA foreign_keys = OFF",
        "BEGIN",
        "DELETE FROM parent WHERE id = 1",
        "CREATE TABLE IF NOT EXISTS later(x)",
        "UPDATE child SET p = 2",
        "COMMIT",
        "DELETE FROM parent",
    ]
    *done, refused = pipeline(node, *map(execute, sql))["results"]
    assert {one["type"] for one in done} == {"ok"}
    assert "would act" in refused["error"]["message"]
    found = execute("SELECT p, (SELECT count(*) FROM parent) FROM child")
    assert rows(pipeline(node, found, {"type": "close"})["results"][0]) == [["2", "1"]]


def test_websocket_is_refused_with_another_way(node: Asker) -> None:
    reply = node("/", method="GET", **{"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"})
    assert (reply.status, "http:" in reply.json["message"]) == (501, True)


@pytest.mark.parametrize("sql", ["SELECT vector32('[1]')", "SELECT * FROM vector_top_k('i', vector('[1]'), 1)"])
def test_error_about_libsqls_vectors_names_vec1(node: Asker, sql: str) -> None:
    (told,) = pipeline(node, execute(sql))["results"]
    assert told["error"]["message"].endswith("use tables of vec1 or vec0, and their functions")


def test_call_for_a_lost_stream_leaves_its_client_without_a_baton(node: Asker) -> None:
    """The Rust client opens another stream after such an answer, and uses the lost one for ever after a status 400."""
    lost = pipeline(node, execute("SELECT 1"), {"type": "close"}, baton="lost")
    assert lost["baton"] is None
    assert [one["error"]["message"][:29] for one in lost["results"]] == ["there is no stream for this b"] * 2
    reply = node("/v3/cursor", {"baton": "lost", "batch": {"steps": [{"stmt": {"sql": "SELECT 1"}}]}})
    first, told = map(json.loads, reply.body.splitlines())
    assert (reply.status, first["baton"], told["type"], told["step"]) == (200, None, "step_error", 0)


def test_a_batch_is_one_transaction_and_says_which_step_failed(node: Asker) -> None:
    """The conditions are those of clients' batches; a failed step has the error, and earlier steps their results."""
    pipeline(node, execute("CREATE TABLE IF NOT EXISTS batched(x UNIQUE)"), execute("DELETE FROM batched"))

    def after(step: int) -> dict[str, Any]:
        return {"type": "ok", "step": step}

    def batch(*sqls: str) -> dict[str, Any]:
        steps = [{"stmt": {"sql": "BEGIN"}}]
        steps += [{"stmt": {"sql": sql}, "condition": after(place)} for place, sql in enumerate((*sqls, "COMMIT"))]
        undo = {"stmt": {"sql": "ROLLBACK"}, "condition": {"type": "not", "cond": after(len(sqls) + 1)}}
        asked = {"type": "batch", "batch": {"steps": [*steps, undo]}}
        result: dict[str, Any] = pipeline(node, asked, {"type": "close"})["results"][0]["response"]["result"]
        return result

    good = batch("INSERT INTO batched VALUES (1)", "SELECT x FROM batched")
    assert good["step_results"][2]["rows"] == [[{"type": "integer", "value": "1"}]]
    assert good["step_results"][-1] is None
    assert good["step_errors"] == [None] * 5
    bad = batch("INSERT INTO batched VALUES (2)", "INSERT INTO batched VALUES (1)")
    assert bad["step_results"][1]["affected_row_count"] == 1
    assert bad["step_errors"][2]["code"] == "SQLITE_CONSTRAINT_UNIQUE"
    assert bad["step_results"][3] is None
    assert bad["step_results"][4] is not None
    assert rows(pipeline(node, execute("SELECT x FROM batched"))["results"][0]) == [["1"]]


def test_cursor_endpoint_returns_lines(node: Asker) -> None:
    """There is a line for each row, and one for the beginning, the end or the error of each step."""
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i FROM n"
    asked = {"baton": None, "batch": {"steps": [{"stmt": {"sql": sql}}, {"stmt": {"sql": "SELECT nothing"}}]}}
    reply = node("/v3/cursor", asked)
    head, *lines = reply.body.splitlines()
    assert b'"baton"' in head
    assert len(lines) == 20_003
    assert b"step_begin" in lines[0]
    assert b"step_end" in lines[-2]
    assert b"step_error" in lines[-1]


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
def test_cursor_for_http_1_0_ends_with_its_connection(node: Asker, version: str) -> None:
    """HTTP/1.0 has no chunks: the body ends with the connection, as ``Connection: close`` announces."""
    steps = {"steps": [{"stmt": {"sql": "SELECT 7"}}]}
    body = json.dumps({"baton": None, "batch": steps}).encode()
    head = f"POST /v3/cursor {version}\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as link:
        link.sendall(head.encode() + body)
        said = b"".join(iter(lambda: link.recv(1 << 16), b""))
    headers, _, answer = said.partition(b"\r\n\r\n")
    assert b" 200" in headers.splitlines()[0], said
    assert (b"chunked" in headers) == (version == "HTTP/1.1")
    if version == "HTTP/1.0":
        assert [json.loads(line).get("type") for line in answer.splitlines()] == [None, "step_begin", "row", "step_end"]


def test_cursor_is_closed_when_its_reader_disconnects(node: Asker) -> None:
    """When the reader disconnects, the read and the stream end."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    body = json.dumps({"baton": None, "batch": {"steps": [{"stmt": {"sql": endless}}]}}).encode()
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as link:
        link.sendall(b"POST /v3/cursor HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        said = b""
        while b'"row"' not in said:
            said += link.recv(100)
        assert node("/status").json["open_streams"] == 1
    deadline = time.monotonic() + 60
    while node("/status").json["open_streams"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert node("/status").json["open_streams"] == 0


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"type": "execute"}, "stmt should be an object"),
        ({"type": "execute", "stmt": {}}, "either sql or sql_id"),
        ({"type": "execute", "stmt": {"sql": "SELECT ?", "args": [{"type": "integer", "value": "1e3"}]}}, "64-bit"),
        ({"type": "execute", "stmt": {"sql": "SELECT ?", "args": [{"type": "integer", "value": str(1 << 63)}]}}, "64"),
        ({"type": "execute", "stmt": {"sql": "SELECT ?", "args": [{"type": "blob", "base64": "*"}]}}, "base64"),
        ({"type": "execute", "stmt": {"sql": "SELECT 1", "sql_id": 1}}, "either sql or sql_id"),
        ({"type": "execute", "stmt": {"sql_id": 7}}, "no text 7 is stored"),
        (
            {"type": "batch", "batch": {"steps": [{"stmt": {}, "condition": {"type": "ok", "step": 0}}]}},
            "earlier steps",
        ),
        ({"type": "execute", "stmt": {"sql": "SELECT ?", "args": [{"type": "float", "value": 10**400}]}}, "64 bits"),
        ({"type": "fly"}, "not a request"),
        ({}, "a request should be a text"),
        ({"type": ["execute"]}, "a request should be a text"),
        (execute("COMMIT"), "no transaction is active"),
        (execute("SELECT 9e999"), "infinite"),
        (execute("ATTACH 'x' AS y"), "ATTACH"),
    ],
)
def test_failed_request_leaves_the_stream_usable(node: Asker, request_: dict[str, Any], says: str) -> None:
    """The stream stays open, and the node answers the next request."""
    wrong, right = pipeline(node, request_, execute("SELECT 1"))["results"]
    assert wrong["type"] == "error"
    assert says in wrong["error"]["message"]
    assert rows(right) == [["1"]]


def test_request_of_a_wrong_type_gets_an_error_beside_the_other_answers(node: Asker) -> None:
    """The statement before it has happened, so the call must not fail as a whole."""
    requests: list[dict[str, Any]] = [execute("SELECT 1"), {"type": ["x"]}, {"type": "close"}, {"type": {}}]
    first, *wrong = pipeline(node, *requests)["results"]
    assert rows(first) == [["1"]]
    assert [one["type"] for one in wrong] == ["error", "ok", "error"]
    reply = node("/v3/cursor", {"batch": {"steps": [{"stmt": requests[0]["stmt"], "condition": {"type": ["ok"]}}]}})
    assert reply.status == 400


def test_rollback_after_a_lost_commit_hides_no_error(node: Asker) -> None:
    """SQLite's transaction is open after a COMMIT that fails, so that programs say ROLLBACK."""
    pipeline(node, execute("CREATE TABLE IF NOT EXISTS lost_end(x)"), execute("INSERT INTO lost_end VALUES (0)"))
    write = execute("INSERT INTO lost_end SELECT count(*) FROM lost_end")
    begun = pipeline(node, execute("BEGIN"), write)
    pipeline(node, write, {"type": "close"})
    ends = execute("COMMIT"), execute("ROLLBACK"), execute("ROLLBACK")
    commit, rollback, again = pipeline(node, *ends, baton=begun["baton"])["results"]
    assert commit["error"]["code"] == "SQLITE_BUSY"
    assert rollback["type"] == "ok"
    assert "no transaction is active" in again["error"]["message"]


@pytest.mark.parametrize(
    ("definition", "values", "code"),
    [
        ("a PRIMARY KEY", "(1), (1)", "PRIMARYKEY"),
        ("a UNIQUE", "(1), (1)", "UNIQUE"),
        ("a NOT NULL", "(NULL)", "NOTNULL"),
        ("a CHECK (a > 0)", "(0)", "CHECK"),
        ("a REFERENCES coded", "(7)", "FOREIGNKEY"),
        ("a REFERENCES coded DEFERRABLE INITIALLY DEFERRED", "(7)", "FOREIGNKEY"),
    ],
)
def test_broken_constraint_has_sqlites_code(node: Asker, definition: str, values: str, code: str) -> None:
    pipeline(node, execute("CREATE TABLE IF NOT EXISTS coded(id INTEGER PRIMARY KEY)"), {"type": "close"})
    pipeline(node, execute("DROP TABLE IF EXISTS broken"), execute(f"CREATE TABLE broken({definition})"))
    (told,) = pipeline(node, execute(f"INSERT INTO broken VALUES {values}"))["results"]
    assert told["error"]["code"] == f"SQLITE_CONSTRAINT_{code}"


def test_text_as_a_rowid_has_sqlites_code(node: Asker) -> None:
    texts = "CREATE TABLE numbered(id INTEGER PRIMARY KEY)", "INSERT INTO numbered VALUES ('x')"
    _, told = pipeline(node, *map(execute, texts))["results"]
    assert (told["error"]["code"], told["error"]["message"]) == ("SQLITE_MISMATCH", "datatype mismatch")


def test_changes_is_0_after_a_broken_constraint(node: Asker) -> None:
    """SQLite returns 0 as well, in a transaction and outside of one."""
    table = "CREATE TABLE counted(a PRIMARY KEY)"
    texts = ["INSERT INTO counted VALUES (1), (2)", "INSERT INTO counted VALUES (3), (1)", "SELECT changes()"]
    answer = pipeline(node, *map(execute, (table, *texts, "BEGIN", "DELETE FROM counted", *texts[1:2] * 2, texts[2])))
    _, two, error, outside, _, gone, three, again, inside = answer["results"]
    assert two["response"]["result"]["affected_row_count"] == 2
    assert gone["response"]["result"]["affected_row_count"] == 2
    assert (error["type"], three["type"], again["type"]) == ("error", "ok", "error")
    assert rows(outside) == rows(inside) == [["0"]]


def test_write_whose_result_json_cannot_express_has_happened(node: Asker) -> None:
    """The answer's error code leaves open whether the statement was executed."""
    made, done, found = pipeline(
        node,
        execute("CREATE TABLE IF NOT EXISTS unsaid(x)"),
        execute("INSERT INTO unsaid VALUES (9e999) RETURNING x"),
        execute("SELECT count(*) FROM unsaid"),
    )["results"]
    assert made["type"] == "ok"
    assert done["error"]["code"] == "RESULT_UNSAYABLE"
    assert "was run" in done["error"]["message"]
    assert rows(found) == [["1"]]


def test_malformed_bodies_are_refused(node: Asker) -> None:
    """The answer is an error as JSON, and the node keeps nothing of the request."""
    for body in (b"", b"[]", b'{"requests": 1}', b'{"requests": [1]}', b'{"requests": [], "baton": 1}', b"\xff"):
        reply = node("/v2/pipeline", body)
        assert (reply.status, set(reply.json)) == (400, {"message", "code"})
    assert node("/livez").status == 200


def test_page_of_another_site_is_refused(node: Asker) -> None:
    """A browser names the origin of a request; a program does not."""
    assert node("/v2/pipeline", {"requests": []}, Origin="https://elsewhere.example").status == 400
    assert node("/v2/pipeline", {"requests": []}).status == 200


def test_libsql_stored_texts_can_be_run_and_described(node: Asker) -> None:
    """A text is stored once, used by its number, and described."""
    found = pipeline(
        node,
        {"type": "store_sql", "sql_id": 1, "sql": "SELECT :a AS one, ?5"},
        {"type": "store_sql", "sql_id": 1, "sql": "SELECT 2"},
        {"type": "describe", "sql_id": 1},
        {"type": "close_sql", "sql_id": 1},
        {"type": "describe", "sql_id": 1},
    )["results"]
    assert [one["type"] for one in found] == ["ok", "error", "ok", "ok", "error"]
    told = found[2]["response"]["result"]
    assert [one["name"] for one in told["params"]] == [":a", None, None, None, "?5"]
    assert [one["name"] for one in told["cols"]] == ["one", "?5"]
    assert (told["is_explain"], told["is_readonly"]) == (False, True)


# -- what does not need a node -------------------------------------------------------------------------------------


def test_parameters_are_numbered_as_sqlite_does() -> None:
    """``?`` is one more than the largest so far; a name keeps its number."""
    assert parameter_names("SELECT ?, :a, ?2, @b, :a, ?") == [None, "?2", "@b", None]
    assert parameter_names("SELECT '?', \"?\"") == []


def test_only_a_whole_transaction_is_run_at_once() -> None:
    """Statements whose result could differ step by step are executed step by step."""

    def steps(*pairs: tuple[str, dict[str, Any] | None]) -> list[BatchStep]:
        return [BatchStep(Statement(sql), want_rows=True, condition=condition) for sql, condition in pairs]

    ok = [{"type": "ok", "step": place} for place in range(5)]
    begin, insert, commit = ("BEGIN IMMEDIATE", None), ("INSERT INTO t VALUES (1)", ok[0]), ("COMMIT", ok[1])
    undo = ("ROLLBACK", {"type": "not", "cond": ok[2]})
    assert whole_transaction(steps(begin, insert, commit)) == range(1, 2)
    assert whole_transaction(steps(begin, insert, commit, undo)) == range(1, 2)
    assert whole_transaction(steps(begin, commit)) is None
    assert whole_transaction(steps(begin, (insert[0], None), commit)) is None
    assert whole_transaction(steps(begin, (insert[0], {"type": "error", "step": 0}), commit)) is None
    assert whole_transaction(steps(begin, ("SAVEPOINT a", ok[0]), commit)) is None
    assert whole_transaction(steps(begin, insert, commit, ("ROLLBACK", ok[2]))) is None
    assert whole_transaction(steps(begin, insert, ("ROLLBACK", ok[1]))) is None


def test_batches_and_conditions_have_limits() -> None:
    """Limits on steps and on nested conditions bound the work of one request."""
    deep: dict[str, Any] = {"type": "is_autocommit"}
    for _ in range(40):
        deep = {"type": "not", "cond": deep}
    with pytest.raises(UsageError, match="inside each other"):
        read_batch({"steps": [{"stmt": {"sql": "SELECT 1"}, "condition": deep}]}, Texts())
    with pytest.raises(TooLargeError, match="is the limit"):
        read_batch({"steps": [{}] * (STEPS_MAX + 1)}, Texts())


def test_stored_texts_take_little_memory_for_each_stream() -> None:
    """Empty texts count as well, by the size of their objects; thirty texts of a usual client fit."""
    for sql, at_least in (("x" * 4_999, 30), ("", 1_000), ("\U0001f600" * 4_999, 10)):
        texts = Texts()

        def store(texts: Texts = texts, sql: str = sql) -> None:
            for number in range(8_000):
                texts.store({"sql_id": number, "sql": sql})

        with pytest.raises(TooLargeError, match="close_sql"):
            store()
        assert len(texts._texts) >= at_least
        texts.close({"sql_id": 0})
        texts.close({"sql_id": 0})
        texts.store({"sql_id": 0, "sql": sql})
        with pytest.raises(TooLargeError, match="close_sql"):
            texts.store({"sql_id": -1, "sql": sql})


@pytest.mark.parametrize("message", ["no answer; the last reason: B left; it may be back; ask again", "no answer"])
def test_unknown_outcome_has_the_whole_reason(message: str) -> None:
    fact = message.removesuffix("; ask again")
    told = write_error(OutcomeUnknownError(message, command="c"))["message"]
    assert told == f"{fact}; read the rows before you run the statement again"


def test_error_of_an_unknown_outcome_names_no_call_that_libsql_lacks() -> None:
    told = write_error(OutcomeUnknownError("no majority could be asked; send it again with the same id", command="c"))
    says = "no majority could be asked; read the rows before you run the statement again"
    assert told == {"message": says, "code": "OUTCOME_UNKNOWN"}


def test_a_parameter_is_given_by_position_or_by_name() -> None:
    """A name is accepted with and without its sign."""
    named = [{"name": ":a", "value": {"type": "null"}}, {"name": "b", "value": {"type": "text", "value": "x"}}]
    assert read_step({"sql": "S", "named_args": named}, Texts()).statement == Statement("S", {"a": None, "b": "x"})
    with pytest.raises(UsageError, match="not both"):
        read_step({"sql": "S", "args": [{"type": "null"}], "named_args": named}, Texts())


# -- clients that know nothing of this project ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the JavaScript clients as pinned, and return the folder of the programs."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here: the JavaScript clients are not tried")
    place = javascript.install(javascript.FOLDER, tmp_path_factory.mktemp("libsql") / "js")
    for example in ("libsql.cjs", "sqlite3.cjs"):
        shutil.copy(javascript.FOLDER.parents[1] / "examples" / example, place)
    return place


@pytest.mark.parametrize("program", javascript.PROGRAMS)
def test_javascript_clients_work(node: Asker, modules: Path, program: str) -> None:
    """The programs use ``@libsql/client``, Drizzle, Kysely, and our drop-ins for ``better-sqlite3`` and ``sqlite3``."""
    assert javascript.run(modules, program, f"http://127.0.0.1:{node.port}") == (0, "done\n")


@pytest.mark.slow
def test_prisma_works_with_its_adapter(node: Asker, tmp_path: Path) -> None:
    """Prisma runs with its adapter, which needs many packages."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here")
    place = javascript.generate(javascript.install(javascript.FOLDER / "prisma", tmp_path / "prisma"))
    assert javascript.run(place, "prisma.mjs", f"http://127.0.0.1:{node.port}") == (0, "done\n")


def test_error_of_a_javascript_client_is_reported(node: Asker, modules: Path) -> None:
    """The error shows the line with the exception."""
    status, said = javascript.run(modules, "client.mjs", f"http://127.0.0.1:{node.cluster.nodes[0].port}")
    assert status != 0
    assert "Error" in said


def test_libsql_from_pypi_works(node: Asker) -> None:
    """``libsql`` (PyPI) is the Rust client."""
    connection = libsql.connect(database=f"http://127.0.0.1:{node.port}", auth_token="")
    connection.execute("CREATE TABLE IF NOT EXISTS py(id INTEGER PRIMARY KEY, x)")
    connection.execute("INSERT INTO py(x) VALUES (?)", (5,))
    connection.commit()
    assert connection.execute("SELECT x FROM py").fetchall() == [(5,)]


@pytest.mark.skipif(find_spec("sqlalchemy_libsql") is None, reason="it is for Python 3.13 and older")
def test_sqlalchemy_libsql_works(node: Asker) -> None:
    """``sqlalchemy-libsql`` uses an older build of the client."""
    engine = create_engine(f"sqlite+libsql://127.0.0.1:{node.port}", connect_args={"auth_token": ""})
    with engine.begin() as opened:
        opened.execute(text("CREATE TABLE IF NOT EXISTS py_orm(id INTEGER PRIMARY KEY, x)"))
        opened.execute(text("INSERT INTO py_orm(x) VALUES (:x)"), {"x": 7})
    with engine.connect() as opened:
        assert opened.execute(text("SELECT x FROM py_orm")).all() == [(7,)]
    engine.dispose()


def test_abandoned_stream_is_rolled_back_and_a_quiet_one_stays(node: Asker, left: str, quiet: str) -> None:
    """HTTP does not show that a client has gone, so its open stream ends after a while.

    This test comes last, when most of that time has passed.
    """
    deadline = time.monotonic() + 60
    while node("/status").json["open_transactions"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert node("/status").json["open_transactions"] == 0
    assert node("/v2/pipeline", {"baton": left, "requests": []}).status == 400
    assert rows(pipeline(node, execute("SELECT count(*) FROM left_open"), {"type": "close"})["results"][0]) == [["0"]]
    assert rows(pipeline(node, execute("SELECT last_insert_rowid()"), baton=quiet)["results"][0]) == [["77"]]


async def test_node_keeps_the_newest_quiet_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines_module, "IDLE_S", 0.0)
    monkeypatch.setattr(pipelines_module, "QUIET_MAX", 2)
    nothing: Any = None
    closed: list[int] = []
    pipelines = Pipelines(nothing, nothing, nothing)
    for number in range(4):
        session: Any = SimpleNamespace(closed=False, is_quiet=number > 0, close=partial(closed.append, number))
        pipelines._keep(OpenStream(session, b"", ""))
    pipelines._close_idle()
    assert (closed, len(pipelines._kept), len(pipelines._quiet)) == ([0, 1], 0, 2)


async def test_quiet_streams_of_one_caller_end_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines_module, "IDLE_S", 0.0)
    monkeypatch.setattr(pipelines_module, "QUIET_MAX", 8)
    nothing: Any = None
    closed: list[str] = []
    pipelines = Pipelines(nothing, nothing, nothing)
    for caller in ("one", *["many"] * 20, "late"):
        session: Any = SimpleNamespace(closed=False, is_quiet=True, close=partial(closed.append, caller))
        pipelines._keep(OpenStream(session, b"", caller))
    pipelines._close_idle()
    assert set(closed) == {"many"}
    assert {stream.caller for stream in pipelines._quiet.values()} == {"one", "many", "late"}


async def test_quiet_stream_that_is_used_again_counts_as_an_open_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines_module, "IDLE_S", 0.0)
    monkeypatch.setattr(pipelines_module, "STREAMS_MAX", 0)
    nothing: Any = None
    pipelines = Pipelines(nothing, nothing, nothing)
    session: Any = SimpleNamespace(closed=False, is_quiet=True)
    baton = pipelines._keep(OpenStream(session, sha256(b"").digest(), ""))
    pipelines._close_idle()
    request: Any = SimpleNamespace(headers={}, address="", user="")
    with pytest.raises(UnavailableError, match="open streams"):
        pipelines._take(request, baton)
    monkeypatch.setattr(pipelines_module, "STREAMS_MAX", 1_000)
    assert pipelines._take(request, baton).session is session


async def test_cursor_baton_is_valid_before_the_last_line_is_sent() -> None:
    """A client that has read the last line may continue over another connection at once."""
    nothing: Any = None
    session: Any = SimpleNamespace(closed=False, close=lambda: None)
    pipelines, kept = Pipelines(nothing, nothing, nothing), OpenStream(session, b"", "")

    async def entries() -> AsyncGenerator[dict[str, Any]]:
        yield {"type": "step_begin", "step": 0, "cols": []}
        yield {"type": "step_end", "affected_row_count": 0, "last_insert_rowid": None}

    seen = [(json.loads(line), set(pipelines._kept)) async for line in pipelines._lines(kept, entries())]
    assert [good for _, good in seen] == [set(), set(), {seen[0][0]["baton"]}]


def test_error_that_repeats_keeps_no_request_in_memory() -> None:
    """A stream tells the error that ended its transaction to each later request."""

    def request(error: ConflictError, body: bytearray) -> None:
        assert body
        raise error

    lost, body = ConflictError("it did not happen"), bytearray(1_000_000)
    before = sys.getrefcount(body)
    for _ in range(3):
        with pytest.raises(ConflictError) as told:
            request(lost, body)
        assert write_error(told.value)["code"] == "SQLITE_BUSY"
        del told
    assert sys.getrefcount(body) == before


async def test_declared_types_of_long_texts_take_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Node:
        async def explain(self, *_: Any, **_modes: Any) -> list[dict[str, Any]]:
            return [{"columns": [("a", "TEXT"), ("b", None)]}]

    monkeypatch.setattr(session, "DECLARED_BYTES", 100_000)
    types = DeclaredTypes(cast(Runtime, Node()), lambda: 1)
    for number in range(30):
        for length in (200_000, 20_000, 100):
            text = f"SELECT {number} AS a, '{'x' * length}' AS b"
            assert await types.of(text, "") == ["TEXT", None]
            assert sum(len(sql) for _, sql in types._known) <= 100_000
    assert types._known
    assert types._bytes == sum(size for _, size in types._known.values())


async def test_infinite_results_do_not_stay_in_memory() -> None:
    class Stream:
        async def answer(self, _asked: dict[str, Any]) -> dict[str, Any]:
            return {"result": {"rows": [[{"type": "float", "value": float("inf")}]], "more": value}}

    value = bytearray(1_000_000)
    before = sys.getrefcount(value)
    for _ in range(3):
        told = await _answered(cast(LibsqlSession, Stream()), {})
        assert told["error"]["code"] == "RESULT_UNSAYABLE"
    gc.collect()
    assert sys.getrefcount(value) == before
