"""Values of a node's own in its file, kept also while a thread has the writer."""

from collections.abc import Callable
from typing import Any

from bedrockish.engine.engine import Engine


class OwnValues:
    """The keeper of a node's own values.

    Args:
        engine: has the file.
        ring: begins a turn, in which ``save`` is called.

    Attributes:
        unsaved: what came to be kept while a thread had the writer.
    """

    def __init__(self, engine: Engine, ring: Callable[[], None]) -> None:
        self._engine, self._ring = engine, ring
        self.unsaved: dict[str, Any] = {}

    def keep(self, name: str, value: Any) -> None:
        """Keep a value; links do not wait for a thread that has the writer, the value does."""
        if self._engine.is_away:
            self.unsaved[name] = value
            self._ring()
        else:
            self.unsaved.pop(name, None)
            self._engine.set_meta(name, value)

    def save(self) -> None:
        """Write what has waited for the writer."""
        while self.unsaved:
            self._engine.set_meta(*self.unsaved.popitem())
