"""A node's own values in its file. While a thread has the writer, a value is kept in memory, and written afterwards."""

from collections.abc import Callable
from typing import Any

from bedrockish.engine.engine import Engine


class OwnValues:
    """Writes a node's own values, at once or when no thread has the writer.

    Args:
        ring: begins a turn, in which ``save`` is called.
    """

    def __init__(self, engine: Engine, ring: Callable[[], None]) -> None:
        self._engine, self._ring = engine, ring
        self.unsaved: dict[str, Any] = {}  # the values that were set while a thread had the writer: name -> value

    def keep(self, name: str, value: Any) -> None:
        """Write a value; while a thread has the writer, write it later, because links must not wait for that thread."""
        if self._engine.batch.is_away:
            self.unsaved[name] = value
            self._ring()
        else:
            self.unsaved.pop(name, None)
            self._engine.set_meta(name, value)

    def save(self) -> None:
        """Write the values that have waited for the writer."""
        while self.unsaved:
            self._engine.set_meta(*self.unsaved.popitem())
