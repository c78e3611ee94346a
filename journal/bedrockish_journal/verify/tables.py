"""Compare a node's tables with its journal: a replay must make just them."""

import os
import tempfile
from pathlib import Path

import apsw

from bedrockish_journal.storage.pruning import marks
from bedrockish_journal.storage.store import open_readonly
from bedrockish_journal.verify.differences import Difference, differences
from bedrockish_journal.verify.replay import Prepare, digest, replay

UNTOLD = "the tables are not what the journal makes of them, and no row tells in what"


def why_not_whole(db: apsw.Connection) -> str:
    """Return why a journal cannot say what its node's tables must be; empty if it can."""
    if marks(db):
        return "the beginning of the journal was removed to make room, so it does not say what the tables must be"
    try:
        row = db.execute("SELECT value FROM bedrockish_meta WHERE key = 'began_with'").fetchone()
    except apsw.SQLError:  # no such table: a journal kept by another program than a node
        return ""
    if row is not None and row[0]:
        return "the cluster began with a database that had tables already, which the journal does not have"
    return ""


def compare_with_journal(path: str | os.PathLike[str], prepare: Prepare | None, limit: int) -> list[Difference]:
    """Return the first differences of a node's tables from what its journal makes, by table and key.

    The file is copied first, so that of a running node can be given.

    Args:
        path: a node's file.
        prepare: gives a connection the functions and collations of plugins.
        limit: how many differences to return at most.

    Raises:
        JournalError: the journal is no such thing, or it does not fit itself; or the file cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="bedrockish-") as folder:
        copy, made = Path(folder, "copy.db"), Path(folder, "made.db")
        source, target = open_readonly(path), apsw.Connection(str(copy))
        try:
            with target.backup("main", source, "main") as backup:
                backup.step(-1)
        finally:
            target.close()
            source.close()
        if replay([copy], made, prepare=prepare).digest == digest(copy):
            return []
        return differences(str(copy), str(made), limit) or [Difference("", None, UNTOLD)]
