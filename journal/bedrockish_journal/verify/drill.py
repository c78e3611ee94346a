"""A backup drill: checks that a database can be restored from a file, and that its content is right.

The file is restored, as in an emergency, and the result is compared with a replay of its journal. If the beginning of
the journal was removed, the replay needs an older backup.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from bedrockish_journal.model.errors import JournalError, JournalFileError, MomentError
from bedrockish_journal.model.vector import covers
from bedrockish_journal.storage.store import applied, reading
from bedrockish_journal.verify.beginning import latest, safe_clock
from bedrockish_journal.verify.differences import differences
from bedrockish_journal.verify.replay import Prepare, digest, replay
from bedrockish_journal.verify.restore import restore
from bedrockish_journal.verify.tables import why_not_whole
from bedrockish_journal.verify.verify import verify

FAULTS_MAX = 20
Said = Callable[[str], None]


@dataclass(slots=True)
class Drill:
    """The result of the drill of one file."""

    path: str  # the backup
    faults: list[str] = field(default_factory=list)  # faults; if empty, a cluster can be founded from the backup
    entries: int = 0  # the number of entries in the backup's journal
    complete: int = 0  # the clock up to which the backup has every commit
    latest: int = 0  # the greatest clock in the backup
    digest: str = ""  # the digest of the restored database
    # The reason why the restored tables were not compared with a replay of the journal; empty if they were compared.
    unproven: str = "it was not restored"


def drill(
    path: str | os.PathLike[str],  # a node's file that no program writes
    *,
    older: str | os.PathLike[str] | None = None,  # an older backup, for a journal whose beginning was removed
    prepare: Prepare | None = None,  # registers the functions and collations of plugins on a connection
    say: Said = lambda _: None,  # called with each step before it begins
) -> Drill:
    """Verify a backup, restore it into a temporary directory, and compare the result with a replay of its journal.

    Raises:
        JournalFileError: a file is not a node's file.
        MomentError: the older backup is not older, or a program writes the file.
    """
    found = Drill(os.fspath(path))
    say("reading every page")
    began = _applied(path)
    why_not = _check_pages(path, older, found)
    if found.faults:
        return found
    say("verifying the journal")
    try:
        report = verify([path])
        found.entries = sum(counts.entries for counts in report.counts)
        found.faults += [f"{one.check}: {one.text}" for one in report.findings[:FAULTS_MAX]]
    except (apsw.Error, JournalFileError) as error:
        found.faults.append(f"bytes: the journal cannot be read: {error}")
    if found.faults:
        return found
    with tempfile.TemporaryDirectory(prefix="bedrockish-") as folder:
        made, proof = Path(folder, "made.db"), Path(folder, "proof.db")
        try:
            say("restoring")
            found.digest = restore(path, made, prepare=prepare).digest
            if digest(path) != found.digest:
                found.faults.append("the restored database differs from its tables")
            say("comparing with its journal")
            if older is not None:
                restore(older, proof, journals=[path], prepare=prepare)
            elif not why_not:
                replay([path], proof, prepare=prepare)
            found.unproven = "" if proof.exists() else why_not
            if proof.exists() and digest(proof) != found.digest:
                found.faults += [f"tables: {one.text}" for one in differences(str(made), str(proof), FAULTS_MAX)]
        except (apsw.Error, JournalError) as error:
            found.faults.append(f"it cannot be restored: {error}")
    if _applied(path) != began:
        raise MomentError(f"{found.path} is being written; make a backup of it and verify that")
    return found


def _applied(path: str | os.PathLike[str]) -> dict[str, int]:
    with reading(path) as db:
        try:
            return applied(db)
        except apsw.Error:  # ``_check_pages`` reports this error
            return {}


def pages(path: str | os.PathLike[str]) -> list[str]:
    """Return the faults of a file's pages, as SQLite reports them.

    Raises:
        JournalFileError: the file is not a node's file.
        apsw.Error: SQLite cannot continue the check.
    """
    with reading(path) as db:
        return [str(text) for (text,) in db.execute(f"PRAGMA integrity_check({FAULTS_MAX})") if text != "ok"]


def _check_pages(path: str | os.PathLike[str], older: str | os.PathLike[str] | None, found: Drill) -> str:
    """Check the pages of the file; return the reason why its journal cannot reproduce its tables, or an empty text."""
    with reading(path) as db:
        try:
            found.faults += [f"pages: {text}" for text in pages(path)]
            found.complete, found.latest = safe_clock(db), latest(db)
            if older is not None and not covers(applied(db), _applied(older)):
                raise MomentError(f"{os.fspath(older)} has commits that {found.path} has not; give an older backup")
            return why_not_whole(db)
        except apsw.Error as error:
            found.faults.append(f"pages: {error}")
            return ""
