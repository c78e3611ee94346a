"""The errors that a caller of bedrockish can catch.

A caller must distinguish three outcomes of a transaction: it was committed (no error), it was not committed (every
error but one), or its outcome is unknown (``OutcomeUnknownError``, which has the command id to ask by).

Each class has a stable ``code`` for programs, a flag ``retry`` that says whether trying again can help, and an
``exit_code``, with which a command-line program ends.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class BedrockishError(Exception):
    """Base of all errors that bedrockish raises on purpose. Any other exception is a bug of bedrockish.

    Attributes:
        code: a stable word for programs.
        retry: whether the same request can succeed later.
        exit_code: status of a command-line program that ends with this error.
        details: the facts in the text, as plain data; ``lagging`` is true if the node that refused the request knew
            that it lacked commits; ``retry`` is then true as well.
        rests_on: a ``Prepared`` with the reads of the refused request, which only the refusing node has; None if the
            refusal did not depend on data.
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
    """Raised when a command's id belongs to another user or another request, or was settled before it happened.

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


# SQLite's words for a missing function or collation; the last ones for a definition that names it.
_LACKS = ("no such function", "no such collation", "unknown function")


class SqlError(UsageError):
    """Raised when SQLite refuses a statement: syntax, a missing table, a wrong number of parameters. Nothing happened.

    ``details`` may have ``sql``, and ``offset``, a position in ``sql`` in characters.
    """

    code = "sql"

    @property
    def lacks_function(self) -> bool:
        """Whether SQLite lacks a function or collation that the statement, or a definition of its tables, names."""
        return any(words in self.message for words in _LACKS)


class ConstraintError(UsageError):
    """Raised when a statement breaks a constraint: UNIQUE, CHECK, NOT NULL, a foreign key. Nothing of the
    transaction happened; the same request can only succeed after the data that forbids it has changed.
    """

    code = "constraint"


class UnsupportedError(UsageError):
    """Raised for an operation that a replicated database cannot do. Nothing happened; the text says what to do."""

    code = "unsupported"


class TooLargeError(UsageError):
    """Raised when a request or its result is over a limit. Nothing happened; split the request or raise the limit."""

    code = "too_large"


class MemoryFullError(TooLargeError):
    """Raised for the newest request of a node that has used all the memory that it may use (``memory_max``).

    Nothing of the request happened. It can succeed after other requests have ended, or if it needs less memory.
    """

    code = "memory_full"
    retry = True


class StatementTimeoutError(TooLargeError):
    """Raised when a statement, or a command's function, ran longer than the node allows, and was interrupted.

    Nothing of the transaction happened. ``details`` has ``limit_s``, and ``sql`` or ``name``.
    """

    code = "statement_timeout"


class VoidedError(UsageError):
    """Raised for a command whose transaction was decided but fitted the tables of no node, so that an operator had
    all members skip its changes. It did not happen. To run the command nevertheless, send it under a new id.
    """

    code = "voided"


class MembershipError(UsageError):
    """Raised when a change of the cluster's members is refused. Nothing happened; the text says what to do instead.

    ``details["reason"]`` is a stable word: ``unknown``, ``duplicate``, ``name``, ``address``, ``used``, ``behind``,
    ``silent``, ``mode``, ``last``, ``quorum``, ``role``, ``secret``, ``level`` or ``action``.
    """

    code = "membership"


class PrunedError(UsageError):
    """Raised when the entries after a reader's cursor were removed from the journal to make room. Nothing was skipped.

    Ask a node that still has them, or copy the tables with ``bedrockish export`` and resume at the cursor it prints.
    """

    code = "pruned"


class ClientClosedError(UsageError):
    """Raised when a client is used after it was closed."""

    code = "closed"


class AuthenticationError(UsageError):
    """Raised when a node refuses the caller's credentials: a wrong or missing user or password, a certificate
    that is revoked or not the cluster's, or missing TLS. Nothing happened.
    """

    code = "authentication"


class ForbiddenError(UsageError):
    """Raised when the user lacks the right for a request. Nothing happened; the text names the missing role.

    ``details`` has ``user``, and ``role``, the least role that has the right.
    """

    code = "forbidden"


class ConflictError(BedrockishError):
    """Raised when a transaction conflicted with others until its time was over. It did not happen; run it again.

    ``details`` has ``table``, ``key`` and ``other``, the winning transaction's txid, which begins with its leader.
    """

    code = "conflict"
    retry = True


class UnavailableError(BedrockishError):
    """Raised when no node can be reached, no quorum answers or the node is behind. The request did not happen."""

    code = "unavailable"
    retry = True
    exit_code = 3


class LearnerError(UnavailableError):
    """Raised when a learner, which only reads, is asked to write. The write did not happen there: ask a voter.

    ``details["voters"]`` maps the name of each voter to its address, with reachable voters first. The clients of this
    package go to a voter by themselves.
    """

    code = "learner"


class ReadOnlyError(UnavailableError):
    """Raised for a write at a node in read-only mode; the text says why and what to do. The write did not happen.

    Reads still work. ``details["alarm"]`` names the cause, such as ``disk_full`` or ``entry_unapplicable``; another
    node may accept the write.
    """

    code = "read_only"


class DeadlineError(UnavailableError):
    """Raised when the caller's time was over before a decision. The request did not happen, and will not."""

    code = "deadline"


class ResultLostError(UnavailableError):
    """Raised when a streamed result ends before its last row. Reading the result again is safe.

    ``details["rows"]`` is the number of rows received before; ``details["reason"]`` is the code of the error that ended
    the stream.
    """

    code = "result_lost"


class TemporaryLostError(BedrockishError):
    """Raised when the TEMP objects of a session are lost: with their node, with the link to it, or after an idle time.

    They are also lost if a temporary file cannot be written: make room in the folder of temporary files (TMPDIR).

    The statement or transaction did not happen. The session can continue after it has made the objects again.
    """

    code = "temporary_lost"


class OutcomeUnknownError(BedrockishError):
    """Raised when the answer was lost and cannot be found out now: the command may have happened, or may still happen.

    ``details["command"]`` is the id. Sending the same command with the same id again is safe: it is applied at most
    once, and the answer is the first one.
    """

    code = "unknown"
    exit_code = 4


class ForgottenError(OutcomeUnknownError):
    """Raised for a command that is sent again, or asked about, after its commit was removed from the journal.

    The node does not run it. ``details["command"]`` is the id; ``details["happened"]`` is True if the command was
    committed but its result is gone, and None if the id is too old to tell. Sending the command again cannot help.
    """

    code = "forgotten"


class DamagedError(BedrockishError):
    """Raised when a node must stop because its file, its journal or its state in memory is damaged."""

    code = "damaged"
    exit_code = 5


class EntryMismatchError(DamagedError):
    """Raised when a decided entry does not fit the tables of this node. Nothing of the entry was applied.

    A decided entry fits all nodes or none, so the tables of this node, or of the node that led the entry, have diverged
    from the journals. ``details`` has ``entry``, ``op``, ``table``, ``key`` and ``why``. ``expected`` and ``found``
    have the value of each differing column as text; None stands for an absent row.
    """

    code = "entry_mismatch"


class NoRoomError(DamagedError):
    """Raised when a node's file cannot be written because the disk is full, a quota is used up, or it may only be read.

    No answered transaction is lost. The node drops its state in memory, and restarts by itself when there is room.
    """

    code = "no_room"


class InternalError(BedrockishError):
    """Raised when a bug in the node's program made a request fail. Nothing of the request happened.

    Only this request failed; the node keeps running. ``details["id"]`` identifies the traceback in the node's log.
    """

    code = "internal"
    exit_code = 70


class ProtocolMismatchError(BedrockishError):
    """Raised when the other side does not speak bedrockish's protocol, or speaks another version of it."""

    code = "protocol"
    exit_code = 3


def forgotten(command: str, txid: object) -> ForgottenError:
    """Return the error for a command whose result is no longer in the journal.

    Args:
        txid: the id of its committed transaction; None if the command's id is too old to tell.
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
    """Return the error for an open transaction that cannot commit with the ``transaction_clock()`` that it has used."""
    return ConflictError(
        f"transaction {command} took its transaction_clock() too early: others have committed since, or that time is "
        "closed; the transaction did not happen: run it again, call transaction_clock() last, and commit within "
        "closing_lag_ms"
    )


def schema_changed() -> ConflictError:
    """Return the error for a transaction that began on another schema than the one in force."""
    why = "the schema has changed since the transaction began; the transaction did not happen: run it again"
    return ConflictError(why, table="schema")


def transaction_ended() -> UnavailableError:
    """Return the error for a step of an open transaction that was ended while the step ran or waited."""
    return UnavailableError("the transaction was ended; it did not happen")


def _subclasses(cls: type[BedrockishError]) -> dict[str, type[BedrockishError]]:
    found = {cls.code: cls} if "code" in vars(cls) else {}  # an internal class has the code of its base
    for sub in cls.__subclasses__():
        found.update(_subclasses(sub))
    return found


def drop_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes, which keep the statements and rows of a request in memory.

    A function that raises an error from a local variable forms a cycle with it. Only the garbage collector frees that,
    and it counts objects, not bytes.
    """
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is not None and not isinstance(one, DamagedError):  # the node ends with it, and logs where it was raised
            found += (one.__cause__, one.__context__)
            one.__traceback__ = one.__cause__ = one.__context__ = None


def pack_error(error: BedrockishError) -> dict[str, Any]:
    """Return an error as plain data, for sending it to a client; drop its frames."""
    drop_frames(error)
    return {"code": error.code, "message": error.message, "details": dict(error.details)}


def unpack_error(packed: Mapping[str, Any]) -> BedrockishError:
    """Rebuild the error that a node sent; a code that this version does not know becomes a plain BedrockishError."""
    cls = _subclasses(BedrockishError).get(str(packed.get("code")), BedrockishError)
    details = packed.get("details")
    return cls(str(packed.get("message", "the node gave no reason")), **(details if isinstance(details, dict) else {}))
