"""A file that cannot be written now is distinguished from a damaged one, at each system call."""

import errno
import os
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.sqlite.errors import NO_ROOM, broken
from bedrockish.engine.storage import database_file, scratch_files
from bedrockish.engine.storage.scratch_files import why_not_writable
from bedrockish.errors import ConfigError, DamagedError, NoRoomError
from bedrockish.node.admin import watching
from bedrockish.node.admin.watching import WriteCheck
from tests.engine.conftest import MakeNode

NUMBERS = sorted(NO_ROOM)


@pytest.mark.parametrize("number", NUMBERS)
def test_failed_write_on_a_full_disk_is_not_damage(number: int) -> None:
    assert isinstance(broken(apsw.IOError("disk I/O error"), number), NoRoomError)
    assert not isinstance(broken(apsw.IOError("disk I/O error"), errno.EIO), NoRoomError)


@pytest.mark.parametrize("number", NUMBERS)
def test_failed_sync_on_a_full_disk_is_not_damage(
    number: int, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()

    def fail(_file: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(NoRoomError, match=os.strerror(number)):
            node.engine.sync()
        number = errno.EIO
        with pytest.raises(DamagedError) as caught:
            node.engine.sync()
    assert not isinstance(caught.value, NoRoomError)


def test_log_of_a_killed_node_that_has_no_room_in_the_database_is_waited_for(
    make_node: MakeNode, tmp_path: Path, limited: Callable[[int], None]
) -> None:
    """Otherwise the node would end, and each start would fail until the operator has made room."""
    node = make_node()
    node.run("CREATE TABLE t(x)")
    node.run("INSERT INTO t VALUES (zeroblob(3000000))")
    node.save()
    node.engine.close()  # copies the log, and removes it
    node = make_node(path=node.path)
    node.run("INSERT INTO t VALUES (zeroblob(100000))")
    node.save()
    left = tmp_path / "left.db"
    for suffix in ("", "-wal"):
        shutil.copy(f"{node.path}{suffix}", f"{left}{suffix}")
    limited(left.stat().st_size)
    for _ in range(2):
        with pytest.raises(NoRoomError, match=r"-wal cannot be copied into the database file: .*make room"):
            Engine.open(left, founding=None)
    limited(resource.RLIM_INFINITY)
    again = make_node(path=left)
    assert [len(row[0]) for row in again.rows("SELECT x FROM t ORDER BY rowid")] == [3_000_000, 100_000]


@pytest.mark.parametrize("number", [*NUMBERS, errno.EACCES])
def test_file_that_cannot_be_opened_without_room_is_waited_for(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str | os.PathLike[str], flags: int, *rest: int, **more: int) -> int:
        if str(path).startswith(str(tmp_path)) and flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError if number == errno.EACCES else NoRoomError, match=os.strerror(number)):
        Engine.open(tmp_path / "a.db", founding=Founding("A", None, "store"))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [*NUMBERS, errno.EMFILE])
def test_probe_names_the_reason(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_writable(tmp_path / "a.db") == ""
    assert list(tmp_path.iterdir()) == []

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    assert why_not_writable(tmp_path / "a.db") == scratch_files.REASONS[number]
    assert list(tmp_path.iterdir()) == []


def test_probe_fails_if_file_and_log_have_reached_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, resource.RLIM_INFINITY))
    assert why_not_writable(tmp_path / "a.db") == ""
    assert why_not_writable(tmp_path / "a.db", 2 << 20) == scratch_files.REASONS[errno.EFBIG]
    (tmp_path / "a.db").write_bytes(bytes(500 << 10))
    assert why_not_writable(tmp_path / "a.db") == ""
    (tmp_path / "a.db-wal").write_bytes(bytes(500 << 10))
    assert why_not_writable(tmp_path / "a.db") == scratch_files.REASONS[errno.EFBIG]


async def test_node_that_failed_many_times_waits_a_minute(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    room, began = WriteCheck(str(tmp_path / "a.db"), 5_000), trio.current_time()
    assert room.why.endswith("a.db could not be written a moment ago, and is tried again in 60 s")
    limited = WriteCheck(str(tmp_path / "a.db"), limit="the machine gives no more memory")
    assert limited.why.endswith("a.db could not be written a moment ago (the machine gives no more memory)")
    await room.wait()
    assert trio.current_time() - began == pytest.approx(60, abs=0.01)


async def test_node_with_a_long_log_starts_each_minute_to_copy_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The log itself may have taken the room, and only a start gives it back."""
    monkeypatch.setattr(watching, "why_no_room", lambda *_: "its disk is full")
    (tmp_path / "a.db-wal").write_bytes(bytes(watching.LONG_LOG_BYTES - 1))
    with trio.move_on_after(300) as waiting:
        await WriteCheck(str(tmp_path / "a.db")).wait()
    assert waiting.cancelled_caught
    os.truncate(tmp_path / "a.db-wal", watching.LONG_LOG_BYTES)
    began = trio.current_time()
    await WriteCheck(str(tmp_path / "a.db")).wait()
    assert trio.current_time() - began == pytest.approx(60, abs=3)


@pytest.mark.parametrize(("suffix", "owner"), [(".lock", 0), ("-wal", 0), ("-shm", 0), ("-wal", os.getuid())])
def test_leftover_file_of_another_user_is_named(
    suffix: str, owner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that root started once leaves such files; an error that names the database would mislead."""
    foreign, access, stat = str(tmp_path / f"a.db{suffix}"), os.access, Path.stat
    Path(foreign).touch()
    Path(tmp_path / "a.db").touch()

    def owned(path: Path, **options: bool) -> os.stat_result:
        found = list(stat(path, **options))
        return os.stat_result([*found[:4], owner if str(path) == foreign else found[4], *found[5:]])

    def refuse(*_: object, **__: object) -> object:
        raise apsw.CantOpenError("unable to open database file")

    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != foreign and access(path, mode))
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 7 if owner == 0 else owner)
    monkeypatch.setattr(Path, "stat", owned)
    if suffix == ".lock":
        monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EACCES, "no")))
    else:
        monkeypatch.setattr(database_file, "ModuleConnection", refuse)
    said = r"belongs to the user with the id 0, .* \(chown\)$" if owner == 0 else "not even by its owner"
    with pytest.raises(ConfigError, match=f"^{foreign} (belongs|may not be written).*"):
        Engine.open(tmp_path / "a.db", founding=Founding("A", None, "store"))  # type: ignore[arg-type]
    assert re.search(said, database_file._foreign(tmp_path / "a.db"))
