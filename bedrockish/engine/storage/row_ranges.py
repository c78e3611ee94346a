"""Digests of ranges of a table's rows (``row_digests``), for comparison between nodes, on a reading connection."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import apsw

from bedrockish.errors import UnavailableError, UsageError
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.verify import row_digests
from bedrockish_journal.verify.row_digests import Range, RangeDigest

Lend = Callable[[], AbstractContextManager[apsw.Connection]]


def digest_range(lend: Lend, asked: Range, beyond: Vector | None) -> RangeDigest:
    """Return the digest of a range of a table as of the last flush; may run in a helper thread.

    Args:
        lend: lends a connection that only reads.
        beyond: as for ``row_digests.digest_range``.

    Raises:
        UsageError: SQLite rejects the range, as for a table that does not exist.
        UnavailableError: the file cannot be read.
    """
    try:
        with lend() as reader:
            return row_digests.digest_range(reader, asked, beyond)
    except apsw.SQLError as error:
        raise UsageError(f"there is no such range of {asked.table!r}: {error}") from error
    except (apsw.CorruptError, apsw.IOError, apsw.CantOpenError) as error:
        raise UnavailableError(f"the file cannot be read: {error}") from error
