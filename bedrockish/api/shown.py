"""The parts of a request that logs and status may show: valid SQL texts, without their values. Pure."""

from collections.abc import Sequence

from bedrockish.errors import BedrockishError, ForbiddenError, SqlError, UnsupportedError, UsageError
from bedrockish.sqltext.normalised import normalised

TOGETHER_MAX = 5  # the most statements of one request that are shown
COMMIT = "COMMIT"


def is_refused(error: BedrockishError) -> bool:
    """Return whether the statement itself was rejected (bad SQL, unsupported, forbidden).

    Such a text must not be shown: if its quotes are wrong, an apparent name in it may be a value.
    """
    return type(error) is UsageError or isinstance(error, SqlError | UnsupportedError | ForbiddenError)


def name_of(texts: Sequence[str]) -> str:
    """Return a name for a request: its statements without their values, or COMMIT if it has none."""
    if not texts:
        return COMMIT
    shown = "; ".join(dict.fromkeys(normalised(text) for text in texts[:TOGETHER_MAX]))
    return f"{shown}; …" if len(texts) > TOGETHER_MAX else shown
