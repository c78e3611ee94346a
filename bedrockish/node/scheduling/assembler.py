"""Assembles messages from their pieces, and decodes them, in a thread and on a connection of its own.

A message of 30 MB takes some tenths of a second, in which the loop would serve no other transaction. The messages are
assembled one after the other, in the order of their arrival.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from bedrockish.core.protocol.effects import Assemble
from bedrockish.core.protocol.events import Assembled, Event
from bedrockish.core.protocol.messages import Whole, read_whole
from bedrockish.core.protocol.pieces import Part
from bedrockish.engine.engine import Engine
from bedrockish.node.scheduling.snapshots import Boundary


class Assembler:
    """Assembles messages from saved pieces, for the effect ``Assemble``."""

    def __init__(
        self,
        engine: Engine,  # has the file with the saved pieces
        post: Callable[[Event], None],  # takes events for the core
        start: Callable[..., None],  # runs a task until the node ends
        boundary: Boundary,
        stop: Callable[[Exception], None],  # ends the node's loop with an error
    ) -> None:
        self._engine, self._post, self._start = engine, post, start
        self._boundary, self._stop = boundary, stop
        self._asked: deque[Assemble] = deque()

    def assemble(self, asked: Assemble) -> None:
        """Assemble a message from its pieces in a thread, and then post ``Assembled``."""
        self._asked.append(asked)
        if len(self._asked) == 1:
            self._start(self._run)

    async def _run(self) -> None:
        try:
            while self._asked:
                asked = self._asked[0]
                here, in_thread = self._engine.votes.assemble, self._engine.background.assemble
                data, known = await self._boundary.read_in_thread(
                    partial(_whole, in_thread, asked.parts), partial(_whole, here, asked.parts)
                )
                self._post(Assembled(asked.peer, asked.parts, data, known))
                del data, known  # free them now: the next message may be as large
                self._asked.popleft()
        except Exception as error:  # the node cannot go on: the core relies on its saved pieces
            self._stop(error)


def _whole(assemble: Callable[[tuple[Part, ...]], bytes], parts: tuple[Part, ...]) -> tuple[bytes, Whole | None]:
    data = assemble(parts)
    return data, read_whole(data)
