"""Restores the database as of a moment from a backup and from journals that continue it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from bedrockish_journal.model.errors import FileMissingError, MomentError
from bedrockish_journal.model.moment import Moment, time_text
from bedrockish_journal.model.vector import covers
from bedrockish_journal.storage.segment import ends
from bedrockish_journal.storage.store import applied, reading
from bedrockish_journal.verify.beginning import latest, safe_clock
from bedrockish_journal.verify.replay import Prepare, ReplayReport, replay
from bedrockish_journal.verify.tables import why_not_whole

SNAPSHOTS, SEGMENTS = "snapshot-??????.db", "journal-??????.db"
"""The names of the files of a continuous backup, in its directory."""


def files_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the snapshots and the segments of a continuous backup.

    Raises:
        FileMissingError: the directory has no snapshot.
    """
    snapshots = sorted(folder.glob(SNAPSHOTS))
    if not snapshots:
        raise FileMissingError(
            str(folder), f"{folder} has no snapshot in it; name a file, or a directory of 'bedrockish backup follow'"
        )
    return snapshots, sorted(folder.glob(SEGMENTS))


def choose(folder: Path, until: Moment | None) -> tuple[Path, list[Path], Moment | None]:
    """Return the snapshot and the segments of a continuous backup from which a moment is restored, and the moment.

    The default moment is the last one up to which the directory is complete. If the backup has only just begun, and its
    only snapshot is later, the moment is None, which means all entries.

    Raises:
        FileMissingError: the directory has no snapshot.
    """
    snapshots, segments = files_in(folder)
    safe = {path: extent(path)[0] for path in segments}
    last = max(safe.values(), default=0)
    wanted = until or (Moment("the end", clock=last) if last else None)
    fitting = [path for path in snapshots if wanted is None or wanted.includes(*extent(path)[1:])]
    until = wanted if fitting else until
    snapshot = fitting[-1] if fitting else snapshots[0]
    needed = list[Path]()
    for path in segments:
        needed.append(path)
        if until is not None and until.clock is not None and safe[path] >= until.clock:
            break
    has = extent(snapshot)[1]
    # The last segment is needed even without new entries, because it records up to which clock the files are complete.
    later = [path for path in needed[:-1] if not covers(has, extent(path)[1])]
    return snapshot, later + needed[-1:], until


def extent(path: Path) -> tuple[int, dict[str, int], int]:
    """Return the clock up to which a file is complete, the vector of its ends, and its greatest clock."""
    with reading(path) as db:
        return safe_clock(db), {leader: tick for leader, (tick, _) in ends(db).items()}, latest(db)


def restore(
    backup: str | os.PathLike[str],  # a node's file
    # The file to write, which must not exist. It appears only when it is complete and durable.
    target: str | os.PathLike[str],
    *,
    journals: Sequence[str | os.PathLike[str]] = (),  # nodes' files, or backups, with the entries after the backup
    until: Moment | None = None,  # the moment; None for all entries in the files
    progress: Callable[[int], None] | None = None,  # called with the number of applied entries, now and then
    prepare: Prepare | None = None,  # registers the functions and collations of plugins on a connection
) -> ReplayReport:
    """Write a plain database with the tables of a cluster as of a moment, and return a report.

    The replay begins with the tables of the backup, if they are not later than the moment; else with an empty database,
    if the backup's journal is whole.

    Raises:
        MomentError: the files do not have exactly the entries of that moment.
        JournalError: a file is not a journal, the files do not fit each other, or the target cannot be written.
    """
    name = os.fspath(backup)
    with reading(backup) as db:
        last = latest(db)
        is_later = until is not None and not until.includes(applied(db), last)
        why_not = why_not_whole(db)
    if not is_later:
        return replay(journals, target, base=backup, until=until, progress=progress, prepare=prepare)
    if why_not:
        assert until is not None, "without a moment, no backup is too late"
        raise MomentError(
            f"{name} has commits up to clock {last} ({time_text(last)}), which is later than {until.text}, and it "
            f"cannot go back: {why_not}; restore from an older backup, with this one as --journal"
        )
    return replay([backup, *journals], target, until=until, progress=progress, prepare=prepare)
