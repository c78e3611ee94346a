"""From SQLite's errors to ours: each apsw exception becomes the typed error that tells a caller what to do."""

import apsw

from bedrockish.errors import BedrockishError, ConstraintError, DamagedError, SqlError, TooLargeError

FULL = "the disk is full; free some space and start the node again: nothing that was answered is lost"

WITHOUT_PLUGIN = (
    "it is a function or a collation of a plugin that this node does not have: name the module in its key plugins, as "
    "at the other nodes, and start it again"
)


def translate(error: apsw.Error, sql: str) -> BedrockishError:
    """Return the error to raise to the client for what SQLite said about a statement."""
    text = str(error)
    match error:
        case apsw.ConstraintError():
            return ConstraintError(text, sql=sql)
        case apsw.TooBigError():
            return TooLargeError(f"{text}: a value or the statement is over the limit; split it", sql=sql)
        case apsw.NoMemError():
            return TooLargeError("SQLite ran out of memory; ask for less at a time", sql=sql)
        case apsw.FullError():
            return DamagedError(FULL)
        case apsw.IOError() | apsw.CorruptError() | apsw.NotADBError() | apsw.ReadOnlyError():
            return DamagedError(f"the database file failed: {text}; check the disk, or fill the node again")
        case _:
            offset = getattr(error, "error_offset", -1)
            return SqlError(text, sql=sql, **({"offset": offset} if offset >= 0 else {}))


def broken(error: apsw.Error) -> DamagedError:
    """Return the error with which a node stops: what was decided cannot be written."""
    if isinstance(error, apsw.FullError):
        return DamagedError(FULL)
    return DamagedError(f"the database file failed: {error}; check the disk, and start the node again")
