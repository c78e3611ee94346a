"""What the engine lends to the transactions that are open between its own uses of the writing connection."""

from collections.abc import Callable
from dataclasses import dataclass

import apsw

from bedrockish.engine.apply import RowApplier
from bedrockish.engine.capture import Capture
from bedrockish.engine.execute import Executor
from bedrockish.engine.limits import Limits


@dataclass(frozen=True, slots=True)
class Parts:
    """The engine's parts.

    Attributes:
        reader: opens another connection that only reads.
        redo: writes the open batch again, when SQLite has rolled it back because of one statement.
    """

    db: apsw.Connection
    executor: Executor
    capture: Capture
    applier: RowApplier
    limits: Limits
    reader: Callable[[], apsw.Connection]
    redo: Callable[[], None]
