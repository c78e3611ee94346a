"""The exceptions of PEP 249, and their mapping from the errors of bedrockish.

Each instance has the original error as its ``__cause__``, and the same message, ``code``, ``retry`` and ``details``.
The message of a conflict also has the words of SQLite, which many programs search before they try again.
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
    """Raised for important warnings. This module never raises it; the standard requires that it exists."""


class Error(Exception):
    """Base of all errors of this module.

    Attributes:
        code: a stable word for programs, the same as in ``bedrockish.errors``.
        retry: whether running the same transaction again can help; if so, it was not committed.
        details: the facts in the text, as plain data. If ``code`` is ``unknown``, ``command`` is the id to ask by.
        sqlite_errorcode: SQLite's extended result code; the number of ``SQLITE_ERROR`` if SQLite did not fail.
        sqlite_errorname: the name of that code, such as ``SQLITE_CONSTRAINT_UNIQUE``.
    """

    code: str = "usage"
    retry: bool = False
    sqlite_errorcode: int = 1
    sqlite_errorname: str = "SQLITE_ERROR"

    def __init__(self, message: str = "", *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details: Mapping[str, Any] = dict(details or {})


class InterfaceError(Error):
    """Raised for a wrong use of the module itself, such as a URL that cannot be parsed."""


class DatabaseError(Error):
    """Raised for errors that are related to the database."""


class DataError(DatabaseError):
    """Raised for a value that cannot be stored or sent: an integer of more than 64 bits, a result over the limit."""


class IntegerTooLargeError(DataError, OverflowError):
    """Raised for an integer of more than 64 bits; sqlite3 raises an ``OverflowError`` for it."""


class OperationalError(DatabaseError):
    """Raised for a failure of the database: no quorum, a conflict, an unknown outcome, SQL that SQLite refuses.

    As in sqlite3, a missing table and a syntax error raise it as well.
    """


class IntegrityError(DatabaseError):
    """Raised when a constraint is broken: UNIQUE, CHECK, NOT NULL, a foreign key."""


class InternalError(DatabaseError):
    """Raised when a node finds that its data is damaged."""


class ProgrammingError(DatabaseError):
    """Raised for a mistake in the program: a wrong number of parameters, several statements, a closed connection.

    As in sqlite3, SQL that is not a text raises a ``TypeError``, and a bad ``isolation_level`` a ``ValueError``.
    """


class NotSupportedError(DatabaseError):
    """Raised for a feature that a replicated database does not have. The text says what to do instead."""


LOCKED = " (SQLite would say: database is locked)"
TOO_BIG, MISMATCH = 18, 20  # SQLITE_TOOBIG, SQLITE_MISMATCH
BINDINGS = "parameter"  # a word in each error about the number or names of parameters

# The first matching class is taken, so a class must come before its base.
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
    """Return the exception of PEP 249 for an error of bedrockish; the caller raises it ``from`` that error."""
    cls = next(cls for ours, cls in _STANDS_FOR if isinstance(error, ours))
    if isinstance(error, SqlError) and BINDINGS in error.message:
        cls = ProgrammingError
    number = error.details.get("sqlite")
    if number == MISMATCH:  # as in sqlite3, for a text as an INTEGER PRIMARY KEY
        cls = IntegrityError
    elif number == TOO_BIG:  # as in sqlite3, for a function of the program that returns an integer of more than 64 bits
        cls = DataError
    is_conflict = isinstance(error, ConflictError)
    made = cls(f"{error.message}{LOCKED}" if is_conflict else error.message, details=error.details)
    made.code, made.retry = error.code, error.retry
    if isinstance(number, int) and number in CODES:
        made.sqlite_errorcode, made.sqlite_errorname = number, CODES[number]
    elif error.details.get("interrupted"):
        made.sqlite_errorcode, made.sqlite_errorname = 9, "SQLITE_INTERRUPT"
    elif is_conflict:  # programs for sqlite3 retry after SQLITE_BUSY
        made.sqlite_errorcode, made.sqlite_errorname = 5, "SQLITE_BUSY"
    return made
