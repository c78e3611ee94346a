"""Everything a caller of bedrockish can catch.

Three answers are kept apart by type, because a caller must act on them differently: it did not happen (every error but
one), it happened (no error), and it cannot be told yet (``OutcomeUnknownError``, which carries the id to ask by).

Each class has a stable ``code`` for programs, says whether trying again can help (``retry``), and with which status a
command-line program ends (``exit_code``).
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class BedrockishError(Exception):
    """Base of everything that bedrockish raises on purpose. Anything else that comes out is a bug of ours.

    Attributes:
        code: a stable word for programs.
        retry: whether the same request can succeed later.
        exit_code: status of a command-line program that ends with this error.
        details: the facts in the text, as plain data; ``lagging`` is true if the node that refused a request knew that
            it did not have all yet: then ``retry`` is, too.
        rests_on: what the request had read when it was refused (a ``Prepared``), at the node that did so; None if no
            data decided it. It does not travel.
    """

    code: ClassVar[str] = "error"
    retry: bool = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, Any] = details
        self.retry = type(self).retry or details.get("lagging") is True
        self.rests_on: Any = None


class UsageError(BedrockishError):
    """Raised when the request itself is wrong. Nothing happened; trying again does not help."""

    code = "usage"
    exit_code = 2


class ConfigError(UsageError):
    """Raised when a configuration file, a flag, a URL or an environment variable is unusable. Nothing was started."""

    code = "config"


class CommandIdError(UsageError):
    """Raised when the id of a command is another user's, another request's, or was settled before it happened.

    The request did not happen, and never will under this id: send it under a new one. ``details["command"]`` is the id;
    ``details["reason"]`` is ``user``, ``open`` (another user's open transaction), ``request`` or ``settled``.
    """

    code = "command_id"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **{**details, "decided": True})


class ForeignClusterError(UsageError):
    """Raised when a session token or a cursor of the change feed is of another cluster. Nothing happened.

    A database that was restored into a new cluster is another cluster, without the history of the first.
    ``details`` has ``given`` and ``cluster``, the two ids.
    """

    code = "foreign_cluster"


class SqlError(UsageError):
    """Raised when SQLite refuses a statement: syntax, a missing table, a wrong number of parameters. Nothing happened.

    ``details`` may have ``sql`` and ``offset`` (characters into it).
    """

    code = "sql"


class ConstraintError(UsageError):
    """Raised when a statement breaks a constraint: UNIQUE, CHECK, NOT NULL, a foreign key. Nothing of the
    transaction happened; it saw data that forbids it, so the same request can only succeed once that data changes.
    """

    code = "constraint"


class UnsupportedError(UsageError):
    """Raised for an operation that a replicated database cannot do. Nothing happened; the text names the way out."""

    code = "unsupported"


class TooLargeError(UsageError):
    """Raised when a request or its result is over a stated limit. Nothing happened; split it or raise the limit."""

    code = "too_large"


class MemoryFullError(TooLargeError):
    """Raised when a node has taken as much memory as it may (``memory_max``), and this request is the newest that asks.

    Nothing of it happened. It can succeed when others are done, or when it asks for less.
    """

    code = "memory_full"
    retry = True


class StatementTimeoutError(TooLargeError):
    """Raised when a statement, or a command's function, ran longer than the node allows, and was interrupted.

    Nothing of the transaction happened. ``details`` has ``limit_s``, and ``sql`` or ``name``.
    """

    code = "statement_timeout"


class VoidedError(UsageError):
    """Raised for a command whose transaction was decided but fitted at no node, and that an operator had applied as
    nothing. It did not happen. A client that still wants it sends it under a new id.
    """

    code = "voided"


class CommandError(UsageError):
    """Raised for a command that does not exist at the node, gets the wrong arguments or fails. Nothing happened.

    A command raises it itself to say no: the text and the details are then its own. ``details["reason"]`` is a stable
    word: ``unknown``, ``arguments``, ``failed`` (a mistake in it; the node's log has more), or the command's own.
    """

    code = "command"


class MembershipError(UsageError):
    """Raised when a change of the cluster's members is refused. Nothing happened; the text names the way out.

    ``details["reason"]`` is a stable word: ``unknown``, ``duplicate``, ``name``, ``address``, ``used``, ``behind``,
    ``silent``, ``mode``, ``last``, ``quorum``, ``role``, ``secret``, ``level`` or ``action``.
    """

    code = "membership"


class PrunedError(UsageError):
    """Raised when what a reader asks for was removed from the journal to make room. Nothing was skipped.

    Ask a node that still has it, or copy the tables with ``bedrockish export`` and go on from the cursor it prints.
    """

    code = "pruned"


class ClientClosedError(UsageError):
    """Raised when a client is used after it was closed."""

    code = "closed"


class AuthenticationError(UsageError):
    """Raised when a node does not let the caller in: a wrong user or password, none at all, a certificate
    that is revoked or not the cluster's, or no TLS where it is needed. Nothing happened.
    """

    code = "authentication"


class ForbiddenError(UsageError):
    """Raised when the user may not do this. Nothing happened; the text names the role that is missing.

    ``details`` has ``user``, and ``role``: the least that would do.
    """

    code = "forbidden"


class ConflictError(BedrockishError):
    """Raised when a transaction lost against others until its patience was over. It did not happen; run it again.

    ``details`` has ``table``, ``key`` and ``other``, the transaction that it lost against, whose prefix is its leader.
    """

    code = "conflict"
    retry = True


class UnavailableError(BedrockishError):
    """Raised when no node can be reached, no quorum answers or this node is not caught up. It did not happen."""

    code = "unavailable"
    retry = True
    exit_code = 3


class LearnerError(UnavailableError):
    """Raised when a learner, which only reads, is asked to write. It did not happen there: ask a voter.

    ``details["voters"]`` maps the name of each voter to its address, those first that can be reached. The clients of
    this package go there by themselves.
    """

    code = "learner"


class ReadOnlyError(UnavailableError):
    """Raised for a write at a node that only reads for now; the text says why and the way out. It did not happen.

    Reads go on. ``details["alarm"]`` names the cause, such as ``disk_full`` or ``entry_unapplicable``; another node may
    take the write.
    """

    code = "read_only"


class DeadlineError(UnavailableError):
    """Raised when the caller's time was over before anything was decided. It did not happen and will not."""

    code = "deadline"


class ResultLostError(UnavailableError):
    """Raised when a streamed result ends before its last row. Reading changes nothing: reading it again is safe.

    ``details["rows"]`` is the number of rows received before; ``details["reason"]`` is the code of the error that ended
    it.
    """

    code = "result_lost"


class TemporaryLostError(BedrockishError):
    """Raised when the TEMP objects of a session are gone: with their node, with the link to it, or idle for too long.

    The statement or transaction did not happen. A session that makes the objects again goes on.
    """

    code = "temporary_lost"


class OutcomeUnknownError(BedrockishError):
    """Raised when the answer was lost and cannot be had now: the command may have happened, or may yet.

    ``details["command"]`` is the id. Sending the same command with the same id again is safe: it is applied once at
    most, and the answer is that of the first time.
    """

    code = "unknown"
    exit_code = 4


class ForgottenError(OutcomeUnknownError):
    """Raised for a command that is sent again, or asked about, after its commit was removed from the journal.

    It is never run. ``details["command"]`` is the id; ``details["happened"]`` is True if it is known to have happened,
    only not with which result, and None if it is too old to tell. Sending it again cannot help.
    """

    code = "forgotten"


class DamagedError(BedrockishError):
    """Raised when a node must stop: its file, its journal or its memory is not what it must be."""

    code = "damaged"
    exit_code = 5


class EntryMismatchError(DamagedError):
    """Raised when a decided entry does not fit the tables of this node. Nothing of the entry was applied.

    A decided entry fits all nodes or none, so the tables of this node, or of the node that led the entry, have diverged
    from the journals. ``details`` has ``entry``, ``op``, ``table``, ``key`` and ``why``. ``expected`` and ``found``
    have the value of each differing column as text; None stands for a row that should be absent, or is.
    """

    code = "entry_mismatch"


class NoRoomError(DamagedError):
    """Raised when a node's file cannot be written because the disk is full, a quota is used up, or it may only be read.

    Nothing that was answered is lost. The node gives up what is in its memory, and begins again by itself when there
    is room.
    """

    code = "no_room"


class InternalError(BedrockishError):
    """Raised when the node's own program failed at a request: a bug. Nothing of the request happened.

    Only this request failed; the node goes on. ``details["id"]`` identifies the traceback in the node's log.
    """

    code = "internal"
    exit_code = 70


class ProtocolMismatchError(BedrockishError):
    """Raised when the other side does not speak our protocol, or not our version of it."""

    code = "protocol"
    exit_code = 3


def forgotten(command: str, txid: object) -> ForgottenError:
    """Return the error for a command of which nothing is in the journal any more.

    Args:
        command: its id.
        txid: what it had become; None if its id is too old to tell.
    """
    if txid is not None:
        text = f"command {command} has happened, as {txid}, and its result was removed from the journal since"
    else:
        text = (
            f"the id of command {command} is older than what this node remembers: it may have happened, and was not "
            "run now; if it is new, the clock of the machine that made the id is far behind"
        )
    return ForgottenError(text, command=command, happened=True if txid is not None else None)


def told_too_early(command: str) -> ConflictError:
    """Return the error for an open transaction whose clock cannot be that of its commit any more."""
    return ConflictError(
        f"transaction {command} took its transaction_clock() too early: others have committed since, or that time is "
        "closed; it did not happen: run it again, call transaction_clock() last, and commit within closing_lag_ms"
    )


def _subclasses(cls: type[BedrockishError]) -> dict[str, type[BedrockishError]]:
    found = {cls.code: cls}
    for sub in cls.__subclasses__():
        found.update(_subclasses(sub))
    return found


def pack_error(error: BedrockishError) -> dict[str, Any]:
    """Return an error as plain data, to be sent to a client."""
    return {"code": error.code, "message": error.message, "details": dict(error.details)}


def unpack_error(packed: Mapping[str, Any]) -> BedrockishError:
    """Rebuild the error that a node sent; a code that this version does not know becomes a plain BedrockishError."""
    cls = _subclasses(BedrockishError).get(str(packed.get("code")), BedrockishError)
    details = packed.get("details")
    return cls(str(packed.get("message", "the node gave no reason")), **(details if isinstance(details, dict) else {}))
