"""A transaction of the feed as plain data, for JSON: the same for the command line, HTTP and SQL. Pure."""

import base64
import math
from typing import Any

from bedrockish_journal.feed.change_feed import Committed
from bedrockish_journal.model.changes import Change, Row, Value


def as_data(transaction: Committed) -> dict[str, Any]:
    """Return a transaction as plain data; a blob becomes {"base64": …}, a number that JSON lacks {"float": …}."""
    whose = transaction.whose
    return {
        "cursor": str(transaction.cursor),
        "clock": transaction.clock,
        "at": transaction.at.isoformat(timespec="milliseconds"),
        "leader": transaction.leader,
        "place": list(transaction.place),
        "command": transaction.command,
        "user": whose.get(transaction.command),
        "joined": list(transaction.joined),
        "joined_users": [whose.get(command) for command in transaction.joined],
        "kind": transaction.kind,
        "after": transaction.after,
        "statements": list(transaction.statements),
        "changes": [
            {
                "op": change.op,
                "table": change.table,
                "command": maker,
                "user": whose.get(maker),
                "before": record(change, change.before),
                "after": record(change, change.after),
            }
            for change, maker in zip(transaction.changes, transaction.makers, strict=True)
        ],
    }


def record(change: Change, row: Row | None) -> dict[str, Any] | None:
    """Return a row of a change as a dict by column names; None if ``row`` is None."""
    return None if row is None else {name: plain(value) for name, value in zip(change.columns, row, strict=True)}


def plain(value: Value) -> Any:
    """Return a value in a form that JSON can represent."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value
