"""The errors that the journal's code raises on purpose."""


class JournalError(Exception):
    """Raised when a journal cannot be read, or its contents are not those of a journal.

    The data in the journal has not been changed.
    """


class EntryMalformedError(JournalError):
    """Raised when bytes do not decode to the entry, transaction or vector that they should be.

    No part of the bytes was used. Fetch the entry from another node, or run ``bedrockish journal verify``.
    """


class ChainBrokenError(JournalError):
    """Raised when an entry does not continue its timeline: its ``prev`` is not the hash of the entry before.

    Attributes:
        leader: the timeline.
        tick: the place of the entry that does not fit.
        expected: the hash that ``prev`` should be.
        found: the entry's ``prev``.
    """

    def __init__(self, leader: str, tick: int, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"timeline {leader} is broken at {leader}{tick}: it continues {found.hex()[:12]}…, "
            f"but the entry before it is {expected.hex()[:12]}…; one of the two was altered"
        )
        self.leader, self.tick, self.expected, self.found = leader, tick, expected, found


class ReplayBlockedError(JournalError):
    """Raised when not all entries can be put in a causally valid order, because entries that they need are missing.

    Attributes:
        blocked: places (leader, tick) of the entries that cannot be applied.
        missing: places of entries that the blocked ones need, and that none of the given journals has.
    """

    def __init__(self, blocked: list[tuple[str, int]], missing: list[tuple[str, int]]) -> None:
        names = ", ".join(f"{leader}{tick}" for leader, tick in blocked[:5])
        wants = ", ".join(f"{leader}{tick}" for leader, tick in missing[:5])
        super().__init__(
            f"{len(blocked)} entries can never be applied (first: {names}); missing: {wants or 'nothing (a cycle)'}; "
            "add the journal of a node that has them"
        )
        self.blocked, self.missing = blocked, missing


class JournalFileError(JournalError):
    """Raised when a file cannot be read as a journal at all; the subclass names the reason. Nothing was changed.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class FileMissingError(JournalFileError):
    """Raised when the file does not exist. Check the path; a node's configuration names its file."""


class NotDatabaseError(JournalFileError):
    """Raised when the file is not a SQLite database, or is so damaged that SQLite does not recognise it.

    Restore the file from a backup, or fill the node again from its peers.
    """


class NoJournalError(JournalFileError):
    """Raised when a SQLite database has no journal, because no node ever ran on the file or a replay made it."""


class FileUnreadableError(JournalFileError):
    """Raised when the file exists but cannot be read: missing permission, a directory, a failing disk."""


class JournalPrunedError(JournalFileError):
    """Raised when a reader needs an entry that the file no longer has, because the journal's beginning was removed.

    Nothing was skipped. Read from a node, a backup or an export that still has the entry, or start again: a stream with
    the option ``starting=oldest`` and a new checkpoint, an export with ``--oldest`` and a new directory.

    Attributes:
        leader: the timeline.
        tick: the first tick that is needed.
        first: the first tick that the file holds.
    """

    def __init__(self, path: str, leader: str, tick: int, first: int, hint: str = "") -> None:
        hint = hint or (
            "read a file that has it, or start again: a stream with the option starting=oldest and a new checkpoint, "
            "an export with --oldest and a new directory"
        )
        super().__init__(
            path, f"{path} no longer holds {leader}{tick}: its timeline {leader} begins at {leader}{first}; {hint}"
        )
        self.leader, self.tick, self.first = leader, tick, first


class ForkError(JournalError):
    """Raised when two journals have different entries at the same place of a timeline.

    One of the journals was altered, or a node lost its disk and continued under its old name. Run
    ``bedrockish journal verify`` on both, and keep the journal that agrees with the other nodes.

    Attributes:
        leader: the timeline.
        tick: the place.
    """

    def __init__(self, leader: str, tick: int, paths: tuple[str, str]) -> None:
        super().__init__(
            f"{leader}{tick} is one commit in {paths[0]} and another in {paths[1]}; verify both beside a third file"
        )
        self.leader, self.tick = leader, tick


class ReplayMismatchError(JournalError):
    """Raised when an entry cannot be applied to the database that the entries before it made.

    The journals are then not the whole history of the database: they were altered, or the database did not begin
    empty. No target file is left behind.

    Attributes:
        node: the node from whose journal the entry was read.
        leader: the timeline of the entry.
        tick: its place in the timeline.
        table: the table, or None for a schema change.
        key: the row, printed, or None.
    """

    def __init__(self, node: str, place: tuple[str, int], table: str | None, key: str | None, why: str) -> None:
        where = f" at {table} {key}" if table is not None else ""
        super().__init__(f"{place[0]}{place[1]} of node {node} cannot be applied{where}: {why}")
        self.node, (self.leader, self.tick), self.table, self.key = node, place, table, key


class TargetExistsError(JournalFileError):
    """Raised when the target file of a new database exists already. Name another file, or remove the existing one."""


class TargetUnwritableError(JournalFileError):
    """Raised when a database cannot be written: missing directory or permission, full disk. No file is left behind."""


class MomentError(JournalError):
    """Raised when the given files cannot restore a database as of a moment.

    The text is not a moment, or the files do not cover the moment: they are complete only up to an earlier moment, or
    begin after it. Nothing was written. The message names a file or a moment that would work.
    """
