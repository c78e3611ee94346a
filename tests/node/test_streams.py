"""A strict stream reads the same snapshot about which a majority was asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from bedrockish.api.requests import NOTHING, STRICT, Answer, Request, Statement, Token, decode_results
from bedrockish.config.config import Bounds
from bedrockish.core.node import Node
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution import cursor
from bedrockish.errors import ConflictError
from bedrockish.node.scheduling.snapshots import Boundary, Snapshots
from bedrockish.node.transactions import cursors
from bedrockish.node.transactions.cursors import Streams
from bedrockish.node.transactions.steps import Submission
from tests.engine.test_interactive import Desk


class StillCore:
    """The part of a core that streams use: the clock."""

    class state:  # noqa: N801
        me = "A"

        @staticmethod
        def read_clock() -> int:
            return 7


@dataclass
class Majority:
    """Reports that the first snapshot misses a commit, and makes that commit."""

    desk: Desk
    asked: list[dict[str, int]] = field(default_factory=list)

    def submit(
        self, request: Request, prepare: Callable[[], Prepared] | None = None, *, once: bool = False, **_: object
    ) -> Submission:
        assert prepare is not None
        return Submission(cast(Any, None), partial(self._answer, request, prepare, once))

    async def _answer(self, request: Request, prepare: Callable[[], Prepared], once: bool) -> Answer:
        read = prepare()
        if request.read == STRICT:
            assert once, "another snapshot would be executed for it"
            assert read.access_set.read_ranges
            self.asked.append(dict(read.base))
            if len(self.asked) == 1:
                self.desk.node.run("INSERT INTO t VALUES (2, 'new')")
                self.desk.node.engine.flush()
                raise ConflictError("there is something newer")
        return Answer(NOTHING, Token())


async def durable() -> None:
    pass


async def test_strict_stream_reads_at_the_confirmed_moment(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "A.db")
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    desk.node.run("INSERT INTO t VALUES (1, 'old')")
    desk.node.engine.flush()
    majority = Majority(desk)
    boundary = Boundary(desk.node.engine, durable)
    snapshots, workers = Snapshots(desk.node.engine, desk.interactive.readers, boundary), cast(Any, None)
    streams = Streams(
        desk.interactive, cast(Node, StillCore()), majority.submit, snapshots, boundary, Bounds(), workers
    )
    statement = Statement("SELECT id FROM t", None)
    for read, expected in ((STRICT, [(1,), (2,)]), ("session", [(1,), (2,), (3,)])):
        owner = object()
        stream = await streams.open(owner, Request(f"c-{read}", (statement,), read))
        assert stream.token.vector == (majority.asked[-1] if read == STRICT else dict(desk.node.engine.applied))
        rows, more = await streams.fetch(stream)
        assert decode_results(rows)[0].rows == expected
        assert not more
        desk.node.run("INSERT OR REPLACE INTO t VALUES (3, 'later')")
        desk.node.engine.flush()
    assert len(majority.asked) == 2
    assert majority.asked[0] != majority.asked[1]


async def test_stream_compiles_its_statement_when_no_thread_has_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that compile on one connection share its authorizer: the stream could be refused for the thread's
    BEGIN.

    Or the thread's BEGIN could be refused, and the node would end: "the database file failed: not authorized".
    """
    desk = Desk(tmp_path / "A.db")
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    engine, back, compiled = desk.node.engine, trio.Event(), list[bool]()
    engine.flush()

    async def written() -> None:
        if engine.batch.is_in_thread:
            await back.wait()

    def compile_read(*arguments: Any) -> Any:
        compiled.append(engine.batch.is_in_thread)
        return cursor.compile_read(*arguments)

    monkeypatch.setattr(cursors, "compile_read", compile_read)
    boundary = Boundary(engine, written)
    snapshots, workers = Snapshots(engine, desk.interactive.readers, boundary), cast(Any, None)
    majority = Majority(desk)
    streams = Streams(
        desk.interactive, cast(Node, StillCore()), majority.submit, snapshots, boundary, Bounds(), workers
    )
    request = Request("c", (Statement("SELECT id FROM t", None),), "session")
    engine.batch.hand_over(lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streams.open, object(), request)
        await wait_all_tasks_blocked()
        engine.batch.take_back()
        back.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert compiled == [False]
