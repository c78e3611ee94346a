"""A file that a killed process has left in the middle of a transaction can be read: SQLite needs a writer for that."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bedrockish_journal.model.errors import FileUnreadableError
from bedrockish_journal.storage import store
from bedrockish_journal.storage.store import open_readonly
from bedrockish_journal.storage.vector_modules import open_to_read
from tests.journal.test_restore import Lived, copy
from tests.journal.unfinished import leave_unfinished

COUNT = "SELECT count(*), (SELECT count(*) FROM sqlite_master WHERE name = 'unfinished') FROM bedrockish_journal"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return copy(Lived(tmp_path, 6).path("A"), tmp_path / "copy.db")


def count(opened: Callable[[Path], Any], path: Path) -> Any:
    with closing(opened(path)) as db:
        return db.execute(COUNT).fetchone()


@pytest.mark.parametrize("opened", [open_readonly, open_to_read])
def test_unfinished_transaction_of_a_killed_process_is_rolled_back(file: Path, opened: Callable[[Path], Any]) -> None:
    before = count(opened, file)
    journal = leave_unfinished(file)
    assert (count(opened, file), before[1]) == (before, 0)
    assert not journal.exists()


def test_unfinished_transaction_in_a_folder_that_is_only_read_is_not_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in such a folder is opened as immutable, but then SQLite takes no notice of a rollback journal."""
    leave_unfinished(file)
    monkeypatch.setattr(os, "access", lambda _path, how: how != os.W_OK)
    monkeypatch.setattr(store, "roll_back", lambda *_: False)
    with pytest.raises(FileUnreadableError, match="copy it with -wal and -journal to your own directory"):
        open_readonly(file)


def test_file_that_cannot_be_rolled_back_names_the_files_to_copy(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of the command may not write the file."""
    leave_unfinished(file)
    monkeypatch.setattr(store, "roll_back", lambda *_: False)
    with pytest.raises(FileUnreadableError, match="copy it with -wal and -journal to your own directory"):
        open_readonly(file)
