"""What a request read and wrote, gathered statement by statement and row by row."""

import apsw

from bedrockish.engine.bulk import footprint, tables_in_bulk
from bedrockish.engine.guard import Piece
from bedrockish.engine.readset import ReadPlan, analyse
from bedrockish.engine.schema import read_schema
from bedrockish.engine.writeset import WriteKeys
from journal.changes import Change
from journal.footprint import Footprint, Range


class Analysis:
    """What is known of statements and keys under one schema; made anew when the schema changes."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._plans: dict[str, ReadPlan] = {}
        self.schema = read_schema(db)
        self.keys = WriteKeys(self.schema)

    def plan(self, piece: Piece) -> ReadPlan:
        """Return the plan of what a statement reads."""
        known = self._plans.get(piece.sql)
        if known is None:
            plan = analyse(self._db, self.schema, piece.sql, len(piece.names))
            known = self._plans[piece.sql] = plan
        return known

    def forget(self) -> None:
        """Forget the plans: too many texts were seen."""
        self._plans.clear()


class Gatherer:
    """Collects the footprint of one request."""

    def __init__(self, analysis: Analysis, *, serializable: bool) -> None:
        self._analysis, self._serializable = analysis, serializable
        self._points: set[bytes] = set()
        self._ranges: set[Range] = set()

    def read(self, piece: Piece, params: tuple[object, ...]) -> None:
        """Add what a statement with these parameters reads."""
        points, ranges = self._analysis.plan(piece).bind(params)
        self._points.update(points)
        if ranges:
            self._ranges.update(ranges)

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
            self._points, self._ranges = set(), set()
        bulk = tables_in_bulk(changes)
        keys.gather(changes, bulk, (self._points, self._ranges), (writes, write_ranges))
        for table in (*blurred, *sorted(bulk)):
            write_ranges.update(keys.whole(table))
        return footprint(self._points, self._ranges, writes, write_ranges)
