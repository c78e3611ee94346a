"""Lookups: reads by known texts that are fast for any content of the tables.

Most requests of a node are lookups. A lookup needs no budget, no number in the memory account and no look at its plan.
Its result is the same as that of ``Executor.read``.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import apsw

from bedrockish.access_sets.call_costs import Lengths
from bedrockish.api.large_results import LARGE_BYTES, encode_in_steps
from bedrockish.api.requests import Result, Statement, encode_read, head_of_read
from bedrockish.engine.execution.snapshot import fetch
from bedrockish.engine.sqlite.bind import bind_one
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.statements.classify import READ, Piece


class Lookup(NamedTuple):
    """A compiled lookup."""

    piece: Piece  # the statement, which calls no function and has no settings
    most: int  # the bytes that a value may have when the lookup runs in the node's loop
    head: bytes  # the encoded result up to the rows

    def run(self, db: apsw.Connection, statement: Statement, limits: Limits) -> bytes | None:
        """Return the encoded result of a statement with this text; None if the caller has to run it to find an error.

        Raises:
            apsw.Error, BedrockishError: the statement fails.
        """
        piece = self.piece
        values = bind_one(piece.names, statement.params)
        db.limit(apsw.SQLITE_LIMIT_LENGTH, self.most)
        try:
            cursor = db.execute(piece.sql, values, can_cache=piece.can_cache)
            rows, size = fetch(cursor, limits, 0, limits.result_bytes)
        except UnicodeDecodeError:
            return None
        finally:
            db.limit(apsw.SQLITE_LIMIT_LENGTH, limits.length_bytes)
        if size < LARGE_BYTES:
            return encode_read(self.head, rows)
        return encode_in_steps([Result(piece.columns, rows, -1, None)], size)


class Lookups:
    """The lookups among compiled texts.

    Args:
        texts: the texts that have run before; ``clear`` is called when they are cleared.
    """

    def __init__(self, texts: Mapping[str, tuple[Piece, ...]]) -> None:
        self._texts = texts
        self._known: dict[str, Lookup | None] = {}

    def clear(self) -> None:
        """Drop all texts."""
        self._known.clear()

    def find(self, sql: str, lengths: Callable[[Piece], Lengths]) -> Lookup | None:
        """Return the lookup for a text; None if the text has not run before or is not a lookup."""
        try:
            return self._known[sql]
        except KeyError:
            pieces = self._texts.get(sql)
            if pieces is None:
                return None
            lookup = self._known[sql] = _lookup_of(pieces, lengths)
            return lookup


def _lookup_of(pieces: tuple[Piece, ...], lengths_of: Callable[[Piece], Lengths]) -> Lookup | None:
    piece = pieces[0]
    if len(pieces) > 1 or piece.kind != READ or not piece.columns or piece.setting or piece.settings:
        return None
    if piece.is_command or piece.is_dear:
        return None
    lengths = lengths_of(piece)
    if not lengths.is_brief or lengths.has_calls or lengths.has_patterns or lengths.searches is not None:
        return None
    return Lookup(piece, lengths.loop, head_of_read(piece.columns))
