"""The exceptions of PEP 249, and which of them stands for which error of bedrockish.

Each instance has the error it stands for as ``__cause__``, and says what that says: ``code``, ``retry``, ``details``.
"""

from collections.abc import Mapping
from typing import Any

from bedrockish.errors import (
    AuthenticationError,
    BedrockishError,
    ClientClosedError,
    ConfigError,
    ConstraintError,
    DamagedError,
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
    """

    code: str = "usage"
    retry: bool = False

    def __init__(self, message: str = "", *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details: Mapping[str, Any] = dict(details or {})


class InterfaceError(Error):
    """Raised when the module itself is used in a way that cannot work: a closed connection, a closed cursor, a URL."""


class DatabaseError(Error):
    """Raised for errors that are related to the database."""


class DataError(DatabaseError):
    """Raised for a value that cannot be stored or sent: an integer of more than 64 bits, a result over the limit."""


class OperationalError(DatabaseError):
    """Raised when the database could not do it now: no quorum, a conflict, a deadline, an outcome that is unknown."""


class IntegrityError(DatabaseError):
    """Raised when a constraint is broken: UNIQUE, CHECK, NOT NULL, a foreign key."""


class InternalError(DatabaseError):
    """Raised when a node finds itself damaged."""


class ProgrammingError(DatabaseError):
    """Raised for a mistake in the program: SQL that SQLite refuses, a missing table, wrong parameters."""


class NotSupportedError(DatabaseError):
    """Raised for what a replicated database cannot do. The text names the way out."""


# The first class that fits is taken, so a class comes before its base.
_STANDS_FOR: tuple[tuple[type[BedrockishError], type[Error]], ...] = (
    (ClientClosedError, InterfaceError),
    (AuthenticationError, OperationalError),
    (ConfigError, InterfaceError),
    (ConstraintError, IntegrityError),
    (SqlError, ProgrammingError),
    (UnsupportedError, NotSupportedError),
    (TooLargeError, DataError),
    (UsageError, ProgrammingError),
    (DamagedError, InternalError),
    (BedrockishError, OperationalError),
)


def standing_for(error: BedrockishError) -> Error:
    """Return the exception of the standard for an error; the caller raises it ``from`` that."""
    cls = next(cls for ours, cls in _STANDS_FOR if isinstance(error, ours))
    made = cls(error.message, details=error.details)
    made.code, made.retry = error.code, error.retry
    return made
