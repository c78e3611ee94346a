"""Lookups are answered as the core answers them: the same bytes, the same errors, the same rights."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bedrockish.access_sets.call_costs import LOOP_BYTES
from bedrockish.api.requests import Statement, encode_read
from bedrockish.errors import ForbiddenError, SqlError
from bedrockish_journal.model.membership import READER, UserSaid
from tests.node.test_direct_reads import Node, a_node
from tests.node.test_durability import request

READ = "SELECT x, x AS other FROM t WHERE id = ?"
VALUES = (None, 5, -(1 << 63), 2.5, "caf\u00e9", b"\x00\xff", "x" * 70_000)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the results that lookups have given so far."""
    found: list[bytes] = []

    def note(head: bytes, rows: Any) -> bytes:
        found.append(encode_read(head, rows))
        return found[-1]

    monkeypatch.setattr("bedrockish.engine.execution.recipes.encode_read", note)
    return found


def one(sql: str, *params: Any) -> dict[str, Any]:
    return {"statements": (Statement(sql, list(params)),)}


def not_unicode(*_: object, **__: object) -> NoReturn:
    raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


async def core_says(node: Node, asked: dict[str, Any], **others: Any) -> bytes:
    # A request that must not be executed again always goes to the core.
    answer = await node.runtime.submit(replace(request("", os.urandom(8).hex()), **asked, **others), once=True)
    return answer.results


async def test_direct_lookup_returns_the_same_bytes_as_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: list[bytes]
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        for number, value in enumerate(VALUES, 1):
            await node.submit(**one("INSERT INTO t(id, x) VALUES (?, ?)", number, value))
        node.answer_at_once(**one(READ, 1))
        for number in range(1, len(VALUES) + 2):  # the last is not there
            expected = await core_says(node, one(READ, number))
            direct = node.direct
            assert node.answer_at_once(**one(READ, number)).results == expected == looked_up[-1]
            assert node.direct == direct + 1
        assert len(looked_up) == len(VALUES) + 1


@pytest.mark.parametrize(
    "sql", ["SELECT x FROM t", "SELECT abs(x) FROM t WHERE id = 1", "SELECT x FROM t WHERE x LIKE ?"]
)
async def test_statement_that_must_be_watched_is_not_executed_as_a_direct_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: list[bytes], sql: str
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        params = ["%"] * sql.count("?")
        for _ in range(3):
            await node.submit(**one(sql, *params))
        assert not looked_up


async def test_direct_lookup_raises_the_same_errors_as_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: list[bytes]
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.submit(**one("INSERT INTO t(id, x) VALUES (2, zeroblob(?)), (3, 3)", 2 * LOOP_BYTES))
        for _ in range(2):
            await node.submit(**one(READ, 3))
        assert looked_up
        with monkeypatch.context() as damaged:
            for module in ("executor", "recipes"):
                damaged.setattr(f"bedrockish.engine.execution.{module}.fetch", not_unicode)
            with pytest.raises(SqlError, match="not UTF-8"):
                await node.submit(**one(READ, 3))
        for params, text in (([], "parameter"), ([1, 2], "parameter"), ([1 << 63], "64-bit")):
            with pytest.raises(SqlError, match=text):
                await node.submit(**one(READ, *params))
        direct = node.direct
        assert len((await node.submit(**one(READ, 2))).results) > 4 * LOOP_BYTES  # by the core, in a thread
        assert node.direct == direct
        assert node.runtime.faults.describe()["internal_errors_recent"] == 0


async def test_lookup_is_forgotten_when_the_schema_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: list[bytes]
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.submit(**one("INSERT INTO t(id, x) VALUES (1, 7)"))
        for _ in range(3):
            await node.submit(**one("SELECT * FROM t WHERE id = 1"))
        assert looked_up
        changed = await node.submit(**one("ALTER TABLE t ADD COLUMN y DEFAULT 5"))
        for _ in range(3):
            found = await node.submit(**one("SELECT * FROM t WHERE id = 1"), token=changed.token)
            assert found.results == await core_says(node, one("SELECT * FROM t WHERE id = 1"))


async def test_lookup_needs_the_right_to_read_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: list[bytes]
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.submit(**one("INSERT INTO t(id, x) VALUES (1, 7)"))
        node.engine.access.learn({"ann": UserSaid("", READER, 1), "bob": UserSaid("", 0, 1)}, ())
        for _ in range(3):
            await node.submit(**one(READ, 1), user="ann")
        assert looked_up
        count = len(looked_up)
        with pytest.raises(ForbiddenError):
            await node.submit(**one(READ, 1), user="bob")
        assert len(looked_up) == count
        node.engine.access.learn({"ann": UserSaid("", 0, 2)}, ())
        with pytest.raises(ForbiddenError):
            await node.submit(**one(READ, 1), user="ann")
        assert len(looked_up) == count
