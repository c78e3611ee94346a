"""What may be told of a request to whoever watches: its texts without values, and nothing of what is no SQL. Pure."""

from collections.abc import Sequence

from bedrockish.errors import BedrockishError, ForbiddenError, SqlError, UnsupportedError, UsageError
from bedrockish.sqltext.normalised import normalised

TOGETHER_MAX = 5  # statements of one request that are shown
COMMIT = "COMMIT"


def is_refused(error: BedrockishError) -> bool:
    """Whether an error says that a text is none that runs here, for whoever asked.

    Such a text is not told: if its quotes are wrong, what looks like a name in it may be a value.
    """
    return type(error) is UsageError or isinstance(error, SqlError | UnsupportedError | ForbiddenError)


def name_of(texts: Sequence[str]) -> str:
    """Return what stands for a request: its statements without their values."""
    if not texts:
        return COMMIT
    shown = "; ".join(dict.fromkeys(normalised(text) for text in texts[:TOGETHER_MAX]))
    return f"{shown}; …" if len(texts) > TOGETHER_MAX else shown
