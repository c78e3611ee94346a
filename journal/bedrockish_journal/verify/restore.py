"""Restore: from a backup, and journals that go on after it, the database as it was at a moment."""

import os
from collections.abc import Callable, Sequence

from bedrockish_journal.model.errors import MomentError
from bedrockish_journal.model.moment import Moment, time_text
from bedrockish_journal.storage.store import applied, open_readonly
from bedrockish_journal.verify.beginning import latest
from bedrockish_journal.verify.replay import Prepare, Report, replay
from bedrockish_journal.verify.tables import why_not_whole


def restore(
    backup: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    journals: Sequence[str | os.PathLike[str]] = (),
    until: Moment | None = None,
    progress: Callable[[int], None] | None = None,
    prepare: Prepare | None = None,
) -> Report:
    """Write a plain database with what a cluster held at a moment.

    The tables of the backup are gone on from, if they are not later than the moment; else everything is made from the
    journal, if that is whole.

    Args:
        backup: a node's file.
        target: the file to write; it must not exist. It is there when it is whole and durable, and not before.
        journals: nodes' files, or backups, that have what came after the backup.
        until: the moment; None for all that is in the files.
        progress: called with the number of entries taken, now and then.
        prepare: gives a connection the functions and collations of plugins.

    Raises:
        MomentError: the files do not have just what there was then.
        JournalError: they are no journals, or do not fit each other; or the target cannot be written.
    """
    name = os.fspath(backup)
    db = open_readonly(backup)
    try:
        last = latest(db)
        is_later = until is not None and not until.includes(applied(db), last)
        why_not = why_not_whole(db)
    finally:
        db.close(True)
    if not is_later:
        return replay(journals, target, base=backup, until=until, progress=progress, prepare=prepare)
    if why_not:
        assert until is not None, "what is asked for as a whole is never too early"
        raise MomentError(
            f"{name} has commits up to clock {last} ({time_text(last)}), which is later than {until.text}, and it "
            f"cannot go back: {why_not}; restore from an older backup, with this one as --journal"
        )
    return replay([backup, *journals], target, until=until, progress=progress, prepare=prepare)
