"""Statistics by statement: grouping, hidden values, bounded memory, the command and the log."""

import json
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bedrockish.client.blocking import connect
from bedrockish.errors import BedrockishError
from bedrockish.node.scheduling.statement_statistics import (
    REFUSED,
    SENT_MAX,
    TEXTS_MAX,
    AnsweredRequest,
    StatementStatistics,
)
from bedrockish.sqltext.normalised import CHARACTERS_MAX, TOKENS_MAX, normalised
from tests.forked import program
from tests.processor import at_most
from tools.cluster import LocalCluster

QUICK = AnsweredRequest(0.01)


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT * FROM t WHERE a = 'x''y' -- a secret", "SELECT * FROM t WHERE a = ?"),
        ("SELECT /* 7 */ a.b FROM t  WHERE c IN (1, 2,3)", "SELECT a.b FROM t WHERE c IN (?, …)"),
        ("INSERT INTO t(a,b) VALUES (?, ?), (1,'x'),(:n,x'00')", "INSERT INTO t(a, b) VALUES (?, …), …"),
        ("INSERT INTO t VALUES (?, ?)", "INSERT INTO t VALUES (?, …)"),
        ("INSERT INTO t VALUES (1), (2), (3)", "INSERT INTO t VALUES (?), …"),
        ("INSERT INTO t VALUES (1), (2)", "INSERT INTO t VALUES (?), …"),
        ('SELECT count(*), f(1, 2) FROM "my t" LIMIT 5, 6', 'SELECT count(*), f(?, …) FROM "my t" LIMIT ?, ?'),
        ("VALUES (1, a), (2, b)", "VALUES (?, a), (?, b)"),
        ("SELECT 1;SELECT 2", "SELECT ?; SELECT ?"),
        ("SELECT 'it does not end", "…"),
        ("\0", "…"),
        ("", ""),
    ],
)
def test_normalised_statement_hides_literals(sql: str, shown: str) -> None:
    assert normalised(sql) == shown


PIECES = ("'s3cret'", "(", ")", ",", "?", "a", "SELECT", " ", "--s3cret\n", "12", "x'12'", '"n"', "…", "/*12*/")


@given(st.lists(st.sampled_from(PIECES)))
def test_normalised_statement_shows_no_literal_or_comment(parts: list[str]) -> None:
    """A quoted name is shown; a text in single quotes, a number and a comment are not."""
    shown = normalised(" ".join(parts))
    assert "s3cret" not in shown
    assert "12" not in shown
    assert len(shown) <= CHARACTERS_MAX + 10


def test_list_of_300000_values_is_normalised_within_a_second() -> None:
    with at_most(1.0):
        shown = normalised(f"SELECT a FROM t WHERE id IN ({', '.join(map(str, range(300_000)))}) AND b = 1")
    assert shown.startswith("SELECT a FROM t WHERE id IN (?, …")
    assert normalised("SELECT " + "a, " * TOKENS_MAX + "a").endswith("…")


def test_statistics_are_bounded_and_drop_the_oldest_texts() -> None:
    now = [100.0]
    kept = StatementStatistics(0, lambda: now[0])
    for number in range(3 * TEXTS_MAX):
        now[0] += 1
        kept.note([f"SELECT c{number} FROM t"], QUICK)
        kept.note(["SELECT often"], QUICK)
    for number in range(2 * SENT_MAX):  # values in the text: one statement
        kept.note([f"SELECT a FROM t WHERE id = {number}"] * 100, QUICK)
    told = kept.describe()
    assert len(told["found"]) <= TEXTS_MAX == len(told["found"]) + TEXTS_MAX - len(kept._found)
    assert told["forgotten"] == 3 * TEXTS_MAX + 2 - len(kept._found)
    assert len(kept._sent) <= SENT_MAX
    assert {one["sql"]: one["calls"] for one in told["found"]}["SELECT often"] == 3 * TEXTS_MAX
    assert {one["sql"]: one["calls"] for one in told["found"]}["SELECT a FROM t WHERE id = ?; …"] == 2 * SENT_MAX
    kept.reset()
    assert kept.describe() == {"since_ms": 0, "forgotten": 0, "found": []}


def test_statement_statistics_sum_up_repeats_result_sizes_and_errors() -> None:
    kept = StatementStatistics(0)
    kept.note(["SELECT  1\n"], AnsweredRequest(0.5))
    kept.note(["SELECT 2"], AnsweredRequest(1.5, attempts=3, result_bytes=10))
    kept.note(["SELECT a"], QUICK)
    kept.note([], AnsweredRequest(0.7, failed=True))
    found = {one["sql"]: one for one in kept.describe()["found"]}
    assert (found["SELECT ?"]["repeats"], found["SELECT ?"]["result_bytes"]) == (2, 10)
    assert (found["SELECT ?"]["longest_ms"], found["SELECT ?"]["total_ms"]) == (1500, 2000)
    assert found["COMMIT"]["errors"] == 1


@pytest.mark.cluster
def test_slow_statements_appear_in_command_and_log_for_permitted_users(tmp_path: Path) -> None:
    """The counts include open transactions and failures; the log is JSON, and callers without the right are refused."""
    cluster = LocalCluster(tmp_path / "one", ("A",), settings={"log": {"json": True, "slow_ms": 100}})
    cluster.write_files()
    cluster.nodes[0].start()
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000)"
    slow = f"{numbers} SELECT count(*), 's3cret' FROM n"
    try:
        trio.run(cluster.wait_ready, 0)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT)")
            for number in range(3):
                db.execute(f"INSERT INTO t VALUES ({number}, 's3cret')")
            with pytest.raises(BedrockishError, match="UNIQUE"):
                db.execute("INSERT INTO t VALUES (1, 's3cret')")
            with pytest.raises(BedrockishError):
                db.execute("INSERT INTO t VALUES (9, 'O's3cret')")
            with pytest.raises(BedrockishError):
                db.execute("SELECT 'O's3cret', ''")
            db.execute("BEGIN")
            db.execute("UPDATE t SET a = 'x' WHERE id = 1")
            db.execute("COMMIT")
            db.execute(slow)
        done = program("statements", cluster.url(), "--json", "--by", "calls")
        assert done.returncode == 0, done.stderr
        assert "s3cret" not in done.stdout
        found = {one["statement"]: one for one in json.loads(done.stdout)}
        one = found["INSERT INTO t VALUES (?, …)"]
        assert (one["calls"], one["errors"], one["nodes"]) == (4, 1, "A")
        assert found["UPDATE t SET a = ? WHERE id = ?"]["calls"] == 1
        assert found["COMMIT"]["calls"] == 1
        assert found[REFUSED]["calls"] == found[REFUSED]["errors"] == 2
        lines = [json.loads(line) for line in cluster.nodes[0].log.read_text().splitlines()]
        logged = {line["statement"]: line for line in lines if line["text"].startswith("slow statement")}
        (one,) = [line for text, line in logged.items() if text.startswith("WITH RECURSIVE n(i) AS (SELECT ? UNION")]
        assert one["took_ms"] >= 100
        assert "s3cret" not in cluster.nodes[0].log.read_text()
        with connect(cluster.url()) as db:
            program("user", "add", cluster.url(), "root", "--role", "admin", stdin="r\n")
        root = cluster.url().replace("//", "//root:r@")
        for name, role in (("ann", "reader"), ("bob", "")):
            program("user", "add", root, name, *(["--role", role] if role else []), stdin="x\n")
        reader, nobody = (cluster.url().replace("//", f"//{name}:x@") for name in ("ann", "bob"))
        assert program("statements", reader).returncode == 0
        assert "needs the role reader" in program("statements", nobody).stderr
        assert "needs the role admin" in program("statements", reader, "--reset").stderr
        assert program("statements", root, "--reset").returncode == 0
        assert json.loads(program("statements", root, "--json").stdout) == []
    finally:
        cluster.stop()
