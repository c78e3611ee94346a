"""Hooks for the property-based tester of ``test_openapi``, so that it does not wait for correct delays."""

from typing import Any

import schemathesis

from bedrockish.http.openapi import WAIT_S_MAX

WAITS_S = 0.5


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Shorten what the tester asks for."""
    shorten(case)


def shorten(case: Any) -> None:
    """Turn a request that a node would keep open into one that it answers soon; what it has to refuse stays."""
    query = case.query or {}
    try:
        is_long = WAITS_S < float(query["wait"]) <= WAIT_S_MAX
    except (KeyError, TypeError, ValueError):
        is_long = False
    if is_long:
        query["wait"] = str(WAITS_S)
    if query.get("follow") == "true":
        query["follow"] = "false"
