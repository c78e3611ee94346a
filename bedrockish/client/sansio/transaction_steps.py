"""Steps of interactive transactions among a client's calls: their links, and the meaning of their loss. Pure.

A transaction lives at the node where it began and dies with the link that it began on. So its statements are never sent
again; when they are lost, it did not happen. A COMMIT that is lost may have happened. It is *settled*, at any
node: either it is found there, or an empty transaction takes its place for good.

A streamed result lives at one node in the same way, from its opening to its last row, and leaves nothing behind.
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
    """Return the transaction whose link a call must go on; None for a call that any node can answer."""
    if isinstance(what, Step) and what.op not in (BEGIN, SETTLE, STREAM) and not what.prepared:
        return what.request.command
    if isinstance(what, Ask) and what.op == EXPLAIN and what.asked is not None:
        return what.asked.get("transaction")
    return None


def begins(what: What, reply: Reply) -> TypeGuard[Step]:
    """Whether a transaction or a stream is open with this reply, at its node."""
    if not isinstance(what, Step):
        return False
    if isinstance(reply, Failed):
        return what.op == BEGIN and bool(reply.error.details.get(BEGUN))
    if not isinstance(reply, Answered):
        return False
    return what.op == BEGIN or (what.op == STREAM and reply.answer.more)


def ends(what: What, reply: Reply) -> TypeGuard[Step]:
    """Whether the transaction or the stream of a call is over with this reply, at its node."""
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
    """Whether a step changes nothing for good, whatever happens to it."""
    return what.op not in (COMMIT, SETTLE) or what.request.read_only


def settling(what: Step) -> Step:
    """Return what to ask when the answer to a COMMIT was lost."""
    return replace(what, op=SETTLE, request=replace(what.request, digest=OPEN), prepared=b"")


def settled(request: Request) -> Step:
    """Return what to ask about a request that is not to be sent again: it has happened, or never will."""
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
    """Return what a reply means to the caller: an empty transaction in place of a COMMIT is an error."""
    if isinstance(what, Step) and what.op == SETTLE and isinstance(reply, Answered) and reply.answer.results == NOTHING:
        return UnavailableError(
            "the node was lost before the transaction was committed; it did not happen, and never will: run it again",
            command=what.request.command,
        )
    return reply
