"""The exceptions of PEP 249, and which of them stands for which error of bedrockish.

Each instance has the error it stands for as ``__cause__``, and says what that says: ``code``, ``retry``, ``details``.
"""

from collections.abc import Mapping
from typing import Any

from bedrockish.dbapi.sqlite_names import CODES
from bedrockish.errors import (
    AuthenticationError,
    BedrockishError,
    ClientClosedError,
    ConfigError,
    ConflictError,
    ConstraintError,
    DamagedError,
    ForbiddenError,
    SqlError,
    TooLargeError,
    UnsupportedError,
    UsageError,
)


class Warning(Exception):  # noqa: A001, N818  the standard names it
    """Raised for important warnings. Nothing here raises it; it exists because the standard says so."""


class Error(Exception):
    """Base of all errors of this module.

    Attributes:
        code: a stable word for programs; that of ``bedrockish.errors``.
        retry: whether running the same transaction again can help. It did not happen.
        details: the facts in the text, as plain data; ``command`` is the id to ask by when the code is ``unknown``.
        sqlite_errorcode: SQLite's extended result code; that of ``SQLITE_ERROR`` where another error stands behind.
        sqlite_errorname: its name, such as ``SQLITE_CONSTRAINT_UNIQUE``.
    """

    code: str = "usage"
    retry: bool = False
    sqlite_errorcode: int = 1
    sqlite_errorname: str = "SQLITE_ERROR"

    def __init__(self, message: str = "", *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details: Mapping[str, Any] = dict(details or {})


class InterfaceError(Error):
    """Raised when the module itself is used in a way that cannot work: a URL that cannot be understood."""


class DatabaseError(Error):
    """Raised for errors that are related to the database."""


class DataError(DatabaseError):
    """Raised for a value that cannot be stored or sent: an integer of more than 64 bits, a result over the limit."""


class IntegerTooLargeError(DataError, OverflowError):
    """Raised for an integer of more than 64 bits; sqlite3 raises an ``OverflowError`` for it."""


class OperationalError(DatabaseError):
    """Raised when the database could not do it: no quorum, a conflict, an unknown outcome, SQL that SQLite refuses.

    As in sqlite3, a missing table and a mistake of syntax are among these.
    """


class IntegrityError(DatabaseError):
    """Raised when a constraint is broken: UNIQUE, CHECK, NOT NULL, a foreign key."""


class InternalError(DatabaseError):
    """Raised when a node finds itself damaged."""


class ProgrammingError(DatabaseError):
    """Raised for a mistake in the program: a wrong number of parameters, several statements, a closed connection.

    As in sqlite3, SQL that is not a text raises a ``TypeError``, and a bad ``isolation_level`` a ``ValueError``.
    """


class NotSupportedError(DatabaseError):
    """Raised for a feature that a replicated database does not have. The text names the way out."""


MISMATCH = 20  # SQLITE_MISMATCH
BINDINGS = "parameter"  # a word of the errors about their number or names

# The first class that fits is taken, so a class comes before its base.
_STANDS_FOR: tuple[tuple[type[BedrockishError], type[Error]], ...] = (
    (ClientClosedError, ProgrammingError),
    (AuthenticationError, OperationalError),
    (ForbiddenError, OperationalError),
    (ConfigError, InterfaceError),
    (ConstraintError, IntegrityError),
    (SqlError, OperationalError),
    (UnsupportedError, NotSupportedError),
    (TooLargeError, DataError),
    (UsageError, ProgrammingError),
    (DamagedError, InternalError),
    (BedrockishError, OperationalError),
)


def standing_for(error: BedrockishError) -> Error:
    """Return the exception of the standard for an error; the caller raises it ``from`` that."""
    cls = next(cls for ours, cls in _STANDS_FOR if isinstance(error, ours))
    if isinstance(error, SqlError) and BINDINGS in error.message:
        cls = ProgrammingError
    number = error.details.get("sqlite")
    if number == MISMATCH:  # as sqlite3 has it, for a text as an INTEGER PRIMARY KEY
        cls = IntegrityError
    made = cls(error.message, details=error.details)
    made.code, made.retry = error.code, error.retry
    if isinstance(number, int) and number in CODES:
        made.sqlite_errorcode, made.sqlite_errorname = number, CODES[number]
    elif error.details.get("interrupted"):
        made.sqlite_errorcode, made.sqlite_errorname = 9, "SQLITE_INTERRUPT"
    elif isinstance(error, ConflictError):  # what programs on sqlite3 run again
        made.sqlite_errorcode, made.sqlite_errorname = 5, "SQLITE_BUSY"
    return made
