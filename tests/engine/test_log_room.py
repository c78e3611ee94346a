"""The write-ahead log leaves room on its disk, whatever programs read the file."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import cast

import apsw
import pytest
import trio

from bedrockish.engine.storage import wal as wal_module
from bedrockish.engine.storage.wal import FRAME_BYTES
from bedrockish.errors import NoRoomError
from bedrockish.node.scheduling.checkpoints import Checkpoints
from bedrockish.node.scheduling.faults import Faults
from tests.engine.conftest import MakeNode
from tests.engine.nodes import Engine, Limits, TestNode
from tests.engine.test_engine_file import SCHEMA, wal_of


def small_disk(node: TestNode, monkeypatch: pytest.MonkeyPatch, pages: int) -> Callable[[int], SimpleNamespace]:
    """Give the node's file and log a disk of this many pages; return the function that counts the free ones."""

    def left(_file: int) -> SimpleNamespace:
        used = sum(path.stat().st_size for path in (node.path, wal_of(node.path)) if path.exists())
        return SimpleNamespace(f_bavail=pages - used // 4096, f_frsize=4096, f_blocks=pages)

    monkeypatch.setattr(wal_module, "FEWEST_FRAMES", 20)
    monkeypatch.setattr(os, "fstatvfs", left)
    return left


def test_wal_of_a_small_disk_leaves_room_for_its_checkpoint(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that takes the last room of the disk would leave the database no room to grow by the log's frames."""
    node = make_node(limits=Limits(wal_frames=80))
    left = small_disk(node, monkeypatch, 3_000)
    node.run(SCHEMA)
    while (free := left(0).f_bavail) > 100:
        node.run("INSERT INTO t(filler) VALUES (randomblob(3000))")
        node.save()
        if node.engine.checkpoint_due:
            node.engine.wal.checkpoint()
        assert wal_of(node.path).stat().st_size // 4096 <= free


def test_log_that_a_reader_holds_leaves_the_room_for_its_copy(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that takes all of the disk could not be copied even after the reader's end, and the node would wait."""
    node = make_node(limits=Limits(wal_frames=80))
    left = small_disk(node, monkeypatch, 1_000)
    node.run(SCHEMA)
    node.save()
    reader = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchall()

    def write() -> None:
        for _ in range(300):
            node.run("INSERT INTO t(filler) VALUES (randomblob(9000))")
            node.save()
            if node.engine.checkpoint_due:
                node.engine.wal.checkpoint()

    with pytest.raises(NoRoomError, match="a program that reads the database"):
        write()
    node.engine.batch.give_up()
    whole = int(node.engine._db.pragma("page_count"))
    assert left(0).f_bavail >= whole - node.path.stat().st_size // 4096
    node.engine.close()
    with pytest.raises(NoRoomError, match="a program that reads the database"):
        Engine.open(node.path, founding=None)
    reader.close()
    again = make_node(path=node.path)
    assert wal_of(node.path).stat().st_size < 100 * FRAME_BYTES
    again.run("INSERT INTO t(filler) VALUES (1)")
    again.save()


async def test_long_log_of_a_node_that_writes_nothing_is_ended(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a node that only reads, for want of room, would keep the log that takes the room."""
    node = make_node(limits=Limits(wal_frames=80))
    small_disk(node, monkeypatch, 10_000)
    node.run(SCHEMA)
    node.save()
    assert node.engine.batch.shorten_log()
    assert node.engine.wal.frames > 0, "the log is short for the disk"
    reader = apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchall()
    node.run("INSERT INTO t(filler) VALUES (randomblob(2000000))")
    node.save()
    small_disk(node, monkeypatch, 1_500)
    node.engine.wal.checkpoint()
    assert not node.engine.batch.shorten_log()
    reader.close()
    assert not node.engine.batch.shorten_log(), "the whole node would wait for the copy"
    assert wal_of(node.path).stat().st_size > 500 * FRAME_BYTES
    checkpoints = Checkpoints(node.engine, cast(Faults, None))
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            checkpoints.shorten_log(nursery)
    assert wal_of(node.path).stat().st_size == 0
    node.run("INSERT INTO t(filler) VALUES (1)")
    node.save()


@pytest.mark.parametrize(("most", "by_room"), [(40, 32_000), (32_000, 40)], ids=["large disk", "small disk"])
async def test_idle_node_notices_the_end_of_a_reader_that_held_the_log(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, most: int, by_room: int
) -> None:
    """Few frames follow, which alone would cause no checkpoint for minutes."""
    monkeypatch.setattr(wal_module.Wal, "_frames_by_room", lambda _wal: by_room)
    node = make_node(limits=Limits(wal_frames=800, wal_frames_max=most))
    node.run(SCHEMA)
    node.save()
    with closing(apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM t").fetchall()
        node.run("INSERT INTO t(filler) VALUES (zeroblob(500000))")
        node.save()
        node.engine.wal.checkpoint()
        assert node.engine.wal.held_frames > 40
    assert not node.engine.checkpoint_due
    checkpoints = Checkpoints(node.engine, cast(Faults, None))
    async with trio.open_nursery() as nursery:
        checkpoints.begin_if_due(nursery)
    assert node.engine.wal.held_frames == 0
    for _ in range(2):
        node.run("INSERT INTO t(filler) VALUES (1)")
        node.save()
    assert node.engine.wal.frames < 40, "the log has started over"


def test_log_starts_over_while_short_readers_take_turns(make_node: MakeNode) -> None:
    """One of the readers always needs frames from before the last commit.

    If each could prevent the restart of the log, the log would grow until the disk is full.
    """
    node = make_node(limits=Limits(wal_frames=800, wal_frames_max=400))
    node.run(SCHEMA)
    node.save()
    is_over = threading.Event()

    def read() -> None:
        with closing(apsw.Connection(str(node.path), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
            while not is_over.is_set():
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM t").fetchall()
                time.sleep(0.005)
                reader.execute("ROLLBACK")

    readers = [threading.Thread(target=read) for _ in range(6)]
    for one in readers:
        one.start()
    try:
        most = 0
        for _ in range(300):
            node.run("INSERT INTO t(filler) VALUES (zeroblob(3000))")
            node.save()
            if node.engine.checkpoint_due:
                node.engine.wal.checkpoint()
            most = max(most, node.engine.wal.frames)
    finally:
        is_over.set()
        for one in readers:
            one.join()
    assert most < 1_600


def test_log_that_no_reader_holds_is_ended_when_other_files_fill_the_disk(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch during the first copy on the small disk must neither end the node nor blame a reader."""
    node = make_node(limits=Limits(wal_frames=5_000))
    node.run(SCHEMA)
    node.run("INSERT INTO t(filler) VALUES (randomblob(2000000))")
    node.save()
    small_disk(node, monkeypatch, 1_000)
    wal, find = node.engine.wal, node.engine.wal._frames_by_room

    def write() -> int:
        wal._most_by_room = found = find()
        node.run("INSERT INTO t(filler) VALUES (1)")
        node.save()
        return found

    monkeypatch.setattr(wal, "_frames_by_room", write)
    wal.checkpoint()
    assert wal.frames == 0
