"""A file that cannot be written now is distinguished from a damaged one, at each system call."""

import errno
import os
from pathlib import Path

import apsw
import pytest

from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.sqlite.errors import NO_ROOM, broken
from bedrockish.engine.storage import scratch_files
from bedrockish.engine.storage.scratch_files import why_not_writable
from bedrockish.errors import ConfigError, DamagedError, NoRoomError
from tests.engine.conftest import MakeNode

NUMBERS = sorted(NO_ROOM)


@pytest.mark.parametrize("number", NUMBERS)
def test_failed_write_without_room_is_no_damage(number: int) -> None:
    assert isinstance(broken(apsw.IOError("disk I/O error"), number), NoRoomError)
    assert not isinstance(broken(apsw.IOError("disk I/O error"), errno.EIO), NoRoomError)


@pytest.mark.parametrize("number", NUMBERS)
def test_failed_sync_without_room_is_no_damage(
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
