"""Small files that are made durable, on file systems that sync no directories, too."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from bedrockish.common.durable_files import lock_folder, make_folder, sync


def test_folder_that_cannot_be_synced_counts_as_durable_and_a_file_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared folders of virtual machines refuse to sync a directory."""
    (tmp_path / "file").write_bytes(b"x")

    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    make_folder(tmp_path / "new" / "one")
    assert (tmp_path / "new" / "one").is_dir()
    with pytest.raises(OSError, match="Invalid argument"):
        sync(tmp_path / "file")


def test_folder_on_a_failing_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        make_folder(tmp_path / "new")


def test_a_process_waits_for_a_folder_although_its_user_cannot_be_told(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    fcntl.flock(first, fcntl.LOCK_EX)

    def tell(_: str) -> None:
        fcntl.flock(first, fcntl.LOCK_UN)
        raise BrokenPipeError

    try:
        lock_folder(second, tmp_path, tell)
        with pytest.raises(BlockingIOError):
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(first)
        os.close(second)
