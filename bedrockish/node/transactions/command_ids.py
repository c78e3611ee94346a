"""Checks of a request against the entry of its command id, because an id belongs to one user and to one request."""

from bedrockish.api.requests import NOTHING, SETTLED, Request, digest_of
from bedrockish.engine.statements.rights import CERTIFIED, Access
from bedrockish.errors import CommandIdError
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import ROWS


def check_request(access: Access, entry: Entry, request: Request) -> None:
    """Check that an entry belongs to a request: to the same user, with the same statements or the same call.

    Entries of releases that kept no digest pass with any statements.

    Raises:
        ForbiddenError: the cluster does not know the user.
        CommandIdError: the id is another user's or another request's, or was settled, so the request never happens.
    """
    command = request.command
    check_owner(access, entry.transaction.user_of(command), command, request.user)
    if request.digest == SETTLED:
        return
    if is_settled(entry, command):
        raise settled(command)
    check_digest(entry.transaction.digest_of(command), command, digest_of(request))


def check_removed(access: Access, removed: tuple[str | None, bytes], request: Request) -> None:
    """Check that a command, whose entry was removed from the journal, belongs to a request; see ``check_request``.

    Args:
        removed: the user and the digest that are kept of the command.
        request: the request that was sent under the command's id.

    Raises:
        ForbiddenError: the cluster does not know the user.
        CommandIdError: as ``check_request``.
    """
    owner, kept = removed
    check_owner(access, owner, request.command, request.user)
    if request.digest == SETTLED:
        return
    if kept == SETTLED:
        raise settled(request.command)
    check_digest(kept, request.command, digest_of(request))


def check_digest(kept: bytes, command: str, digest: bytes) -> None:
    """Check that a command was a request with this digest; ``kept``: the digest kept of it, empty if unknown.

    Raises:
        CommandIdError: the command was another request.
    """
    if kept not in (b"", digest):
        raise CommandIdError(
            f"command {command} has happened before, with other statements or other parameters; this request did not "
            "happen: send it under a new id, and repeat a request only unchanged",
            command=command,
            reason="request",
        )


def is_settled(entry: Entry, command: str) -> bool:
    """Return whether a command was settled before it happened; for an entry without a digest, judge by its result."""
    transaction = entry.transaction
    digest = transaction.digest_of(command)
    return digest == SETTLED if digest else transaction.kind == ROWS and transaction.result_of(command) == NOTHING


def settled(command: str) -> CommandIdError:
    """Return the error for a command that was settled before it happened."""
    return CommandIdError(
        f"command {command} was settled before it happened; it did not happen, and never will: send it under a new id",
        command=command,
        reason="settled",
    )


def check_owner(access: Access, owner: str | None, command: str, user: str, reason: str = "user") -> None:
    """Make sure that a command is the user's own.

    Args:
        owner: the user whose command it is; None if no user was required when it was sent.
        user: the user that sends it, asks about it or settles it.
        reason: in the details of the error: ``user``, or ``open`` for a transaction that may still be rolled back.

    Raises:
        ForbiddenError: the cluster does not know the user.
        CommandIdError: the command is another user's.
    """
    rights = access.of(user)
    if rights is None:
        return
    rights.require(0, "this")
    if owner is not None and owner.removeprefix(CERTIFIED) != user.removeprefix(CERTIFIED):
        raise CommandIdError(
            f"command {command} is the id of another user's command; this request did not happen: send it under "
            "another id",
            command=command,
            reason=reason,
        )
