"""The attributes of a request's span, at client and node alike: by OpenTelemetry's conventions for databases. Pure."""

from collections.abc import Mapping

from bedrockish.api.requests import Answer, Request
from bedrockish.api.shown import COMMIT as NO_TEXT
from bedrockish.api.shown import TOGETHER_MAX, is_refused, name_of
from bedrockish.api.wire import BEGIN, COMMIT, ROLLBACK, SETTLE
from bedrockish.errors import BedrockishError
from bedrockish.sqltext.statement_kinds import verb_of

SCOPE = "bedrockish"
CONTROLS = frozenset({BEGIN, COMMIT, ROLLBACK, SETTLE})  # steps of an open transaction that need no statement
OTHER = "STATEMENT"
VERBS = {
    *("SELECT", "VALUES", "INSERT", "REPLACE", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "PRAGMA", "EXPLAIN"),
    *("BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE", "ANALYZE", "REINDEX", "VACUUM"),
}
Value = str | int


def operation_of(request: Request, op: str = "") -> str:
    """Return the kind of a request as one word without user data: the name of its span.

    Args:
        request: what was asked.
        op: which step of an open transaction or a stream it is; empty: none, it is a whole one.
    """
    if op in CONTROLS and not request.texts:
        return op.upper()
    if request.change is not None:
        return "MEMBERS"
    if request.call is not None:
        return "CALL"
    verbs = {verb if (verb := verb_of(sql)) in VERBS else OTHER for sql in request.texts[: TOGETHER_MAX + 1]}
    if len(request.texts) < 2:
        return verbs.pop() if verbs else NO_TEXT
    return f"BATCH {verbs.pop()}" if len(verbs) == 1 else "BATCH"


def begin_facts(request: Request, operation: str, cluster: str) -> dict[str, Value]:
    """Return what is known of a request when it begins; what a sampler can go by."""
    facts: dict[str, Value] = {
        "db.system.name": SCOPE,
        "db.operation.name": operation,
        "bedrockish.command": request.command,
    }
    if cluster:
        facts["db.namespace"] = cluster
    if len(request.texts) > 1:
        facts["db.operation.batch.size"] = len(request.texts)
    if request.call is not None:
        facts["db.stored_procedure.name"] = request.call.name
    return facts


def end_facts(request: Request, found: Answer | BedrockishError | None) -> Mapping[str, Value]:
    """Return what is known of a request when it is answered. Its text comes only now: without values, and not at all if
    the node has refused it, for where quotes are wrong, what looks like a name may be a value.
    """
    facts: dict[str, Value] = {}
    if not (isinstance(found, BedrockishError) and is_refused(found)) and request.texts:
        facts["db.query.text"] = name_of(request.texts)
    if isinstance(found, BedrockishError):
        facts["db.response.status_code"] = facts["error.type"] = found.code
    elif found is not None:
        facts["bedrockish.attempts"] = found.attempts
        if found.place is not None:
            facts["bedrockish.place"] = "{}{}".format(*found.place)
    return facts
