"""Everything the journal's code raises on purpose."""


class JournalError(Exception):
    """Raised when a journal cannot be read, or does not say what a journal must say.

    The data in the journal has not been changed.
    """


class EntryMalformedError(JournalError):
    """Raised when bytes that should be an entry, a transaction or a vector are not one.

    Nothing was taken from them. Fetch the entry from another node, or run ``bedrockish journal verify``.
    """


class ChainBrokenError(JournalError):
    """Raised when an entry does not continue its timeline: its ``prev`` is not the hash of the entry before.

    Attributes:
        leader: the timeline.
        tick: the place of the entry that does not fit.
        expected: the hash that ``prev`` should be.
        found: the hash that it is.
    """

    def __init__(self, leader: str, tick: int, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"timeline {leader} is broken at {leader}{tick}: it continues {found.hex()[:12]}…, "
            f"but the entry before it is {expected.hex()[:12]}…; one of the two was altered"
        )
        self.leader, self.tick, self.expected, self.found = leader, tick, expected, found


class ReplayBlockedError(JournalError):
    """Raised when entries cannot all be put in a causally valid order: something they need is missing.

    Attributes:
        blocked: labels (leader, tick) that could not be placed.
        missing: labels that they wait for and that are in none of the given journals.
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
    """Raised when a file cannot be read as a journal at all; the subclass says why. Nothing was changed.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class FileMissingError(JournalFileError):
    """Raised when there is no such file. Check the path; a node's file is named in its configuration."""


class NotDatabaseError(JournalFileError):
    """Raised when the file is not a SQLite database, or so damaged that SQLite does not know it as one.

    Restore it from a backup, or let the node be filled again by the others.
    """


class NoJournalError(JournalFileError):
    """Raised when the file is a SQLite database without a journal: no node ever ran on it, or a replay made it."""


class FileUnreadableError(JournalFileError):
    """Raised when the file is there and may not or cannot be read: permissions, a directory, a failing disk."""


class JournalPrunedError(JournalFileError):
    """Raised when a reader needs an entry that the file no longer holds: the beginning of its journal was removed.

    Nothing was skipped. Read from a node, a backup or an export that still has the entry; or start again and say so,
    with the option ``starting=oldest`` and a new checkpoint.

    Attributes:
        leader: the timeline.
        tick: the first tick that is needed.
        first: the first tick that the file holds.
    """

    def __init__(self, path: str, leader: str, tick: int, first: int, hint: str = "") -> None:
        hint = hint or "read a file that has it, or begin anew with the option starting=oldest and a new checkpoint"
        super().__init__(
            path, f"{path} no longer holds {leader}{tick}: its timeline {leader} begins at {leader}{first}; {hint}"
        )
        self.leader, self.tick, self.first = leader, tick, first


class ForkError(JournalError):
    """Raised when two journals have different entries at the same place of a timeline.

    One of them was altered, or a node lost its disk and went on under its old name. Run ``bedrockish journal verify``
    on both, and keep the one that the other nodes agree with.

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

    Then those journals do not tell the whole story of the database: they were altered, or the database did not begin
    empty. No target file is left behind.

    Attributes:
        node: whose journal the entry was read from.
        leader: the timeline of the entry.
        tick: its place there.
        table: the table, or None for a schema change.
        key: the row, printed, or None.
    """

    def __init__(self, node: str, place: tuple[str, int], table: str | None, key: str | None, why: str) -> None:
        where = f" at {table} {key}" if table is not None else ""
        super().__init__(f"{place[0]}{place[1]} of node {node} cannot be applied{where}: {why}")
        self.node, (self.leader, self.tick), self.table, self.key = node, place, table, key


class TargetExistsError(JournalFileError):
    """Raised when a database should be written where there is a file already. Name another one, or remove it."""


class TargetUnwritableError(JournalFileError):
    """Raised when a database cannot be written: no such directory, no permission, no room. Nothing is left behind."""


class MomentError(JournalError):
    """Raised when a database cannot be made as it was at some moment from the files that were given.

    The text is not a moment, or the files do not cover it: they are complete only up to an earlier moment, or begin
    after it. Nothing was written. The message says which file or which moment would do.
    """
