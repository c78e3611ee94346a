"""Decides when to retry a call, and the error for its caller when its time is over. Pure.

The rule: an error proves only that *its own attempt* was not committed. If the answer of an earlier attempt of the same
command was lost, a later error proves nothing about that attempt. Only an answer proves its outcome, because a command
id is applied at most once. Until then the outcome is unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bedrockish.api.requests import Request
from bedrockish.api.wire import BEGIN, STREAM, Ask, Step
from bedrockish.client.sansio.transaction_steps import What
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    DamagedError,
    DeadlineError,
    OutcomeUnknownError,
    UnavailableError,
)
from bedrockish.sqltext.statement_kinds import verb_of
from bedrockish_net.errors import Code

_READS = frozenset({"SELECT", "VALUES", "EXPLAIN"})


def only_reads(request: Request) -> bool:
    """Return whether a command certainly changes nothing, judged by the first word of each statement."""
    if request.change is not None:
        return False
    return all(verb_of(statement.sql) in _READS for statement in request.statements)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between retries: doubling from ``ms_min`` to ``ms_max``, each drawn at random from its upper half."""

    ms_min: float = 20.0
    ms_max: float = 2_000.0

    def pause_s(self, round_: int, draw: Callable[[], float]) -> float:
        """Return the pause before trying again for the ``round_``-th time (1, 2, …), in seconds."""
        full = min(self.ms_max, self.ms_min * 2.0 ** min(round_ - 1, 30))
        return full * (0.5 + 0.5 * draw()) / 1000


class FailureMeaning(Enum):
    """The meaning of a failed attempt for its call."""

    FINAL = "the caller gets this error: the call was not committed"
    ELSEWHERE = "this attempt was not committed; ask another node"
    LOST = "this attempt may have been committed; ask another node"
    AGAIN = "this attempt was not committed, but an earlier one may have been, or there is time; ask the same node"


def judge(error: BedrockishError, *, lost: int, harmless: bool, shortened: bool = False) -> FailureMeaning:
    """Return what to do after an error from a node.

    Args:
        lost: the number of earlier attempts of this command whose outcome is unknown.
        harmless: whether the call cannot change anything.
        shortened: whether the attempt had only a part of the call's time, and there is time left.
    """
    if error.details.get("decided"):
        return FailureMeaning.FINAL  # the error is the outcome of the command itself, for all its attempts
    if isinstance(error, OutcomeUnknownError | DamagedError):
        return FailureMeaning.LOST
    if isinstance(error, UnavailableError) and (shortened or not isinstance(error, DeadlineError)):
        return FailureMeaning.ELSEWHERE
    if (lost and not harmless) or (shortened and isinstance(error, ConflictError)):
        return FailureMeaning.AGAIN
    return FailureMeaning.FINAL


SHUTDOWN, REFUSED = str(Code.SHUTDOWN), str(Code.REFUSED)


def has_text(what: What) -> bool:
    """Return whether a call sends a client's own text or values, with which it may have crashed the node."""
    if isinstance(what, Request) and what.change is not None:
        return False  # an operator's change of the members, whose answer does not tell whether it happened
    return isinstance(what, Request | Ask) or (isinstance(what, Step) and what.op in (BEGIN, STREAM))


def is_graceful_stop(error: BedrockishError) -> bool:
    """Return whether a link ended because its node was stopped gracefully."""
    return error.details.get("reason") == SHUTDOWN


def is_refusal(error: BedrockishError) -> bool:
    """Return whether a node has closed a link at its limit of clients or files, before it took any call."""
    return error.details.get("reason") == REFUSED


def refused_after_two_losses(last: BedrockishError) -> UnavailableError:
    """Return the error for a call that did not happen, but under which two links broke; ``last``: the second error."""
    error = UnavailableError(
        "two nodes were lost while they had this request, so it is not sent to a third one, which it may crash; "
        f"the request did not happen: read the nodes' logs before you send it again ({last.message})",
        reason="two_died",
    )
    # Otherwise a loop such as ``run_transaction`` would send the request again, which could crash two more nodes.
    error.retry = False
    return error


def out_of_time(what: What, *, uncertain: bool, waited_s: float, last: BedrockishError | None) -> BedrockishError:
    """Return the error for a call whose time is over; ``uncertain``: whether some attempt may have happened."""
    because = f"; the last reason: {last.message}" if last is not None else ""
    if uncertain:
        assert isinstance(what, Request | Step), "only a command can leave anything behind"
        command = what.command if isinstance(what, Request) else what.request.command
        return OutcomeUnknownError(
            f"no answer to command {command} within {waited_s:.3g} s, and it may have happened{because}; "
            "ask for its outcome or send it again under the same id",
            command=command,
        )
    if last is not None and not isinstance(last, OutcomeUnknownError):
        if isinstance(last, UnavailableError):
            return type(last)(f"no node took the request within {waited_s:.3g} s{because}", **last.details)
        return last
    return DeadlineError(f"the {waited_s:.3g} s of the request were over before it was answered; it did not happen")
