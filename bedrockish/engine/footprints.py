"""What a request read and wrote, gathered statement by statement and row by row."""

import apsw

from bedrockish.engine.guard import Piece
from bedrockish.engine.readset import ReadPlan, analyse
from bedrockish.engine.schema import read_schema
from bedrockish.engine.writeset import WriteKeys
from journal.changes import Change
from journal.footprint import Footprint, Range, object_range

DEFINITIONS: Range = (b"s:", b"s;")  # every definition: what a schema change writes


class Analysis:
    """What is known of statements and keys under one schema; made anew when the schema changes."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._plans: dict[str, tuple[ReadPlan, frozenset[bytes]]] = {}
        self.schema = read_schema(db)
        self.keys = WriteKeys(self.schema)

    def plan(self, piece: Piece) -> tuple[ReadPlan, frozenset[bytes]]:
        """Return the plan of what a statement reads, and the definitions of the tables that it touches."""
        known = self._plans.get(piece.sql)
        if known is None:
            plan = analyse(self._db, self.schema, piece.sql, len(piece.names))
            touched = plan.tables | piece.tables
            definitions = frozenset(b"s:" + table.encode() + b"\0" for table in touched if table)
            known = self._plans[piece.sql] = plan, definitions
        return known

    def forget(self) -> None:
        """Forget the plans: too many texts were seen."""
        self._plans.clear()


class Gatherer:
    """Collects the footprint of one request."""

    def __init__(self, analysis: Analysis, *, serializable: bool) -> None:
        self._analysis, self._serializable = analysis, serializable
        self._definitions: set[bytes] = set()
        self._points: set[bytes] = set()
        self._ranges: set[Range] = set()

    def read(self, piece: Piece, params: tuple[object, ...]) -> None:
        """Add what a statement with these parameters reads."""
        plan, definitions = self._analysis.plan(piece)
        points, ranges = plan.bind(params)
        self._definitions |= definitions
        self._points.update(points)
        if ranges:
            self._ranges.update(ranges)
        if piece.whole_schema:
            self._ranges.add(DEFINITIONS)

    def schema(self, piece: Piece) -> None:
        """Add what a schema statement reads: all of every table that it names."""
        for table in piece.tables:
            self._points.add(b"s:" + table.encode() + b"\0")
            self._ranges.add(object_range(f"t:{table}"))

    def rows(self, changes: list[Change], blurred: list[str]) -> Footprint:
        """Return the footprint of a request that made these changes.

        Args:
            changes: every row change.
            blurred: tables of whose changes only the net effect is known; all of them counts as written.
        """
        keys = self._analysis.keys
        writes: set[bytes] = set()
        write_ranges: set[Range] = set()
        if changes and not self._serializable:
            # Snapshot isolation: what was only read is not certified, but what constraints looked up is.
            self._points, self._ranges = set(), self._ranges & {DEFINITIONS}
        self._points |= self._definitions
        for change in changes:
            row = (change.table, change.rowid, change.rowid_after, change.before, change.after)
            points, ranges = keys.keys(*row)
            writes.update(points)
            write_ranges.update(ranges)
            points, ranges = keys.reads(*row)
            self._points.update(points)
            self._ranges.update(ranges)
        for table in blurred:
            write_ranges.update(keys.whole(table))
        return self._footprint(writes, write_ranges)

    def definitions(self, *, changed: bool) -> Footprint:
        """Return the footprint of a request of schema statements; all definitions are written if any changed."""
        if not changed:
            self._ranges.add(DEFINITIONS)
        return self._footprint(set(), {DEFINITIONS} if changed else set())

    def _footprint(self, writes: set[bytes], write_ranges: set[Range]) -> Footprint:
        return Footprint(
            frozenset(self._points), tuple(sorted(self._ranges)), frozenset(writes), tuple(sorted(write_ranges))
        )
