"""Steps of interactive transactions among a client's calls: their links, and the outcome if they are lost. Pure.

A transaction is open at the node where it began, and is rolled back if the link on which it began ends. So its
statements are never sent again; if one is lost, the transaction was not committed. A lost COMMIT may have been
executed. It is *settled* at any node: either it is found committed, or an empty transaction takes its id for good.

A streamed result is bound to one node in the same way, from its opening to its last row, and changes nothing.
"""

from dataclasses import replace
from typing import TypeGuard

from bedrockish.api.requests import NOTHING, OPEN, Request, digest_of
from bedrockish.api.wire import (
    BEGIN,
    BEGUN,
    CLOSE,
    COMMIT,
    EXPLAIN,
    ROLLBACK,
    SETTLE,
    STREAM,
    STREAM_STEPS,
    Answered,
    Ask,
    AskOutcome,
    Failed,
    Reply,
    Step,
    Told,
)
from bedrockish.errors import BedrockishError, UnavailableError, UsageError

What = Request | AskOutcome | Ask | Step


def name_of(what: What) -> str | None:
    """Return the transaction on whose link a call must be sent; None for a call that any node can answer."""
    if isinstance(what, Step) and what.op not in (BEGIN, SETTLE, STREAM) and not what.prepared:
        return what.request.command
    if isinstance(what, Ask) and what.op == EXPLAIN and what.asked is not None:
        return what.asked.get("transaction")
    return None


def begins(what: What, reply: Reply) -> TypeGuard[Step]:
    """Return whether a transaction or a stream is open at its node after this reply."""
    if not isinstance(what, Step):
        return False
    if isinstance(reply, Failed):
        return what.op == BEGIN and bool(reply.error.details.get(BEGUN))
    if not isinstance(reply, Answered):
        return False
    return what.op == BEGIN or (what.op == STREAM and reply.answer.more)


def ends(what: What, reply: Reply) -> TypeGuard[Step]:
    """Return whether the transaction or the stream of a call has ended at its node after this reply."""
    if not isinstance(what, Step):
        return False
    if what.op in STREAM_STEPS:
        return what.op == CLOSE or not (isinstance(reply, Answered) and reply.answer.more)
    if isinstance(reply, Failed):
        return what.op == ROLLBACK or not isinstance(reply.error, UsageError)
    return what.op in (COMMIT, ROLLBACK)


def giving_up(what: What) -> Step | None:
    """Return the step that ends the transaction or stream which a cancelled call may have opened; None for others."""
    if not isinstance(what, Step) or what.op not in (BEGIN, STREAM):
        return None
    return Step(0, replace(what.request, statements=()), ROLLBACK if what.op == BEGIN else CLOSE)


def is_harmless(what: Step) -> bool:
    """Return whether a step cannot commit anything."""
    return what.op not in (COMMIT, SETTLE) or what.request.read_only


def settling(what: Step) -> Step:
    """Return the step that settles a COMMIT whose answer was lost."""
    return replace(what, op=SETTLE, request=replace(what.request, digest=OPEN), prepared=b"")


def settled(request: Request) -> Step:
    """Return the step that settles a request that must not be sent again."""
    empty = replace(request, statements=(), change=None, call=None, digest=digest_of(request))
    return Step(0, empty, SETTLE)


def gone(what: What, where: str, why: BedrockishError | None) -> UnavailableError:
    """Return the error for a transaction or a stream whose node cannot be reached any more."""
    reason = f": {why.message}" if why is not None else ""
    if isinstance(what, Step) and what.op in STREAM_STEPS:
        return UnavailableError(f"the result was read at {where}, which is gone{reason}")
    return UnavailableError(
        f"the transaction was open at {where}, which is gone{reason}; it did not happen, and can be run again"
    )


def judged(what: What, reply: Answered | Told) -> Answered | Told | BedrockishError:
    """Return the outcome of a reply for the caller: an empty transaction in place of a COMMIT is an error."""
    if isinstance(what, Step) and what.op == SETTLE and isinstance(reply, Answered) and reply.answer.results == NOTHING:
        return UnavailableError(
            "the node was lost before the transaction was committed; it did not happen, and never will: run it again",
            command=what.request.command,
        )
    return reply
