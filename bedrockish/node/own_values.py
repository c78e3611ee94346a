"""A node's own values in its file. While a thread has the writing connection, a value waits in memory."""

from collections.abc import Callable
from typing import Any

from bedrockish.engine.engine import Engine


class OwnValues:
    """Writes a node's own values, at once or when no thread has the writer.

    Args:
        ring: begins a turn, in which ``save`` is called.
    """

    def __init__(self, engine: Engine, ring: Callable[[], None]) -> None:
        self._engine, self._wake = engine, ring
        self.unsaved: dict[str, Any] = {}  # the values that were set while a thread had the writer: name -> value

    def keep(self, name: str, value: Any) -> None:
        """Write a value, or keep it for ``save`` while a thread has the writer: the caller must not wait for that."""
        if self._engine.batch.is_in_thread:
            self.unsaved[name] = value
            self._wake()
        else:
            self.unsaved.pop(name, None)
            self._engine.set_meta(name, value)

    def save(self) -> None:
        """Write the values that have waited for the writer."""
        while self.unsaved:
            self._engine.set_meta(*self.unsaved.popitem())
