"""Steps of interactive transactions among a client's calls: their links, and the outcome if they are lost. Pure.

A transaction is open at the node where it began, and is rolled back if the link on which it began ends. So its
statements are never sent again; if one is lost, the transaction was not committed. A lost COMMIT may have been
executed. It is *settled* at any node: the node finds the commit, or commits an empty transaction under its id.

A streamed result is bound to one node in the same way, from its opening to its last row, and changes nothing.
"""

from dataclasses import replace
from typing import TypeGuard

from bedrockish.api import wire
from bedrockish.api.requests import NOTHING, OPEN, Request, digest_of
from bedrockish.errors import BedrockishError, UnavailableError, UsageError

What = Request | wire.Ask | wire.Step


def bound_to(what: What) -> str | None:
    """Return the id of the transaction or stream whose link a call must use; None if any node can answer the call."""
    if isinstance(what, wire.Step) and what.op not in (wire.BEGIN, wire.SETTLE, wire.STREAM) and not what.prepared:
        return what.request.command
    if isinstance(what, wire.Ask) and what.op == wire.EXPLAIN and what.asked is not None:
        return what.asked.get("transaction")
    return None


def begins(what: What, reply: wire.Reply) -> TypeGuard[wire.Step]:
    """Return whether a transaction or a stream is open at its node after this reply."""
    if not isinstance(what, wire.Step):
        return False
    if isinstance(reply, wire.Failed):
        return what.op == wire.BEGIN and bool(reply.error.details.get(wire.BEGUN))
    if not isinstance(reply, wire.Answered):
        return False
    return what.op == wire.BEGIN or (what.op == wire.STREAM and reply.answer.more)


def ends(what: What, reply: wire.Reply) -> TypeGuard[wire.Step]:
    """Return whether the transaction or the stream of a call has ended at its node after this reply."""
    if not isinstance(what, wire.Step):
        return False
    if what.op in wire.STREAM_STEPS:
        return what.op == wire.CLOSE or not (isinstance(reply, wire.Answered) and reply.answer.more)
    if isinstance(reply, wire.Failed):
        return what.op == wire.ROLLBACK or not isinstance(reply.error, UsageError)
    return what.op in (wire.COMMIT, wire.ROLLBACK)


def closing_step(what: What) -> wire.Step | None:
    """Return the step that ends the transaction or stream that a cancelled call may have opened; else None."""
    if not isinstance(what, wire.Step) or what.op not in (wire.BEGIN, wire.STREAM):
        return None
    return wire.Step(0, replace(what.request, statements=()), wire.ROLLBACK if what.op == wire.BEGIN else wire.CLOSE)


def cancelling(what: What, number: int) -> dict[str, object] | None:
    """Return the fields of the CANCEL of a call; None for a call that is not cancelled.

    Short calls are not cancelled, nor is a COMMIT, whose outcome can be asked for. ``closing_step`` ends the
    transaction or stream that a BEGIN or STREAM may have opened.
    """
    if isinstance(what, Request):
        return {"command": what.command}
    if isinstance(what, wire.Ask):
        return {"call": number} if what.op == wire.EXPLAIN else None
    return {"command": what.request.command} if what.op == wire.STATEMENTS else None


def is_harmless(what: wire.Step) -> bool:
    """Return whether a step cannot commit anything."""
    return what.op not in (wire.COMMIT, wire.SETTLE) or what.request.read_only


def settle_commit(what: wire.Step) -> wire.Step:
    """Return the step that settles a COMMIT whose answer was lost."""
    return replace(what, op=wire.SETTLE, request=replace(what.request, digest=OPEN), prepared=b"")


def settle_request(request: Request) -> wire.Step:
    """Return the step that settles a request that must not be sent again."""
    empty = replace(request, statements=(), change=None, digest=digest_of(request))
    return wire.Step(0, empty, wire.SETTLE)


def node_lost(what: What, where: str, why: BedrockishError | None) -> UnavailableError:
    """Return the error for a transaction or a stream whose node cannot be reached any more."""
    reason = f": {why.message}" if why is not None else ""
    if isinstance(what, wire.Step) and what.op in wire.STREAM_STEPS:
        return UnavailableError(f"the result was read at {where}, which is gone{reason}")
    return UnavailableError(
        f"the transaction was open at {where}, which is gone{reason}; it did not happen, and can be run again"
    )


def outcome_of(what: What, reply: wire.Answered | wire.Told) -> wire.Answered | wire.Told | BedrockishError:
    """Return the caller's outcome from a reply: an empty transaction in place of a COMMIT is an error."""
    if (
        isinstance(what, wire.Step)
        and what.op == wire.SETTLE
        and isinstance(reply, wire.Answered)
        and reply.answer.results == NOTHING
    ):
        return UnavailableError(
            "the node was lost before the transaction was committed; it did not happen, and never will: run it again",
            command=what.request.command,
        )
    return reply
