"""The errors with which transactions or streams have ended, for later steps of their clients."""

from collections import OrderedDict
from typing import Any

from bedrockish.errors import BedrockishError

ENDED_MAX = 1_000  # the most errors that are kept
CHARACTERS_MAX = 1_000  # a kept message is cut to this length, and a longer detail, such as the statement, is dropped


class EndedErrors:
    """The last errors, by the name of the transaction or stream."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, BedrockishError] = OrderedDict()

    def keep(self, name: str, error: BedrockishError) -> None:
        """Keep a copy of an error: its traceback would keep the rows of the transaction in memory."""
        details = {key: value for key, value in error.details.items() if len(str(value)) <= CHARACTERS_MAX}
        self._kept[name] = type(error)(error.message[:CHARACTERS_MAX], **details)
        while len(self._kept) > ENDED_MAX:
            self._kept.popitem(last=False)

    def forget(self, name: str) -> None:
        """Forget the error of a name, which is in use again."""
        self._kept.pop(name, None)

    def find(self, name: str, **details: Any) -> BedrockishError | None:
        """Return an error to raise, with these details in addition; None if no error is kept."""
        error = self._kept.get(name)
        return None if error is None else type(error)(error.message, **{**error.details, **details})
