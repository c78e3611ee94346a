"""The graceful shutdown: the node refuses new requests, answers the requests that it has taken, and closes its links.

The first SIGTERM or SIGINT starts a departure. The node keeps voting and reading its links until its own requests are
answered and durable. Statements that run in background workers are interrupted after a second, and answered as not
executed. The node's last message to each client says that the requests without an answer were not executed, so that the
client can send these to another node.
"""

import logging
import time
from collections.abc import Awaitable, Callable

import trio

from bedrockish.api.wire import LINK_ID, UNTAKEN, Failed, encode_reply
from bedrockish.errors import UnavailableError
from bedrockish.node.runtime import Runtime
from bedrockish_net.errors import Code, LinkClosedError
from bedrockish_net.stream import Link

logger = logging.getLogger(__name__)

DRAIN_S = 5.0  # how long requests under way may take
LONG_S = 1.0  # how long requests in background workers may take; another node can execute them again
FLUSH_S = 1.0  # how long links and HTTP may take to send the last answers
POLL_S = 0.01
CHECKS = 2  # successive checks that have to find a condition false


class Departure:
    """Ends one node's process after its requests are answered."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()  # the scope in which the node runs; its cancellation ends the node
        # The function that answers the requests under way; None while the node does not serve.
        self.drain: Callable[[], Awaitable[None]] | None = None
        self.reload: Callable[[], object] = lambda: None  # the function that reads certificates again, on SIGHUP
        # Whether the clients were sent the last message; a client that connects later gets it at once.
        self.has_answered = False

    async def leave(self) -> None:
        """Drain the node, if it serves, and end it."""
        if self.drain is not None:
            with trio.move_on_after(DRAIN_S + 2 * FLUSH_S):
                await self.drain()
        self.scope.cancel()


def send_last_message(link: Link) -> None:
    """Stop reading from a client, and tell it that its requests without an answer were not executed."""
    text = "the node is stopping; it has not executed this request"
    link.pause()
    try:
        link.send_nowait(encode_reply(Failed(LINK_ID, UnavailableError(text, reason=Code.SHUTDOWN, **{UNTAKEN: True}))))
    except LinkClosedError:
        logger.debug("a client left before the node did")


async def drain(runtime: Runtime, departure: Departure) -> None:
    """Refuse new requests, and wait for ``DRAIN_S`` at most until the requests under way are answered."""
    runtime.refuse_new()
    await _poll(lambda: runtime.is_busy(time.monotonic()), LONG_S)
    runtime.give_up(runtime.workers.requests)
    await _poll(lambda: runtime.is_busy(time.monotonic()), DRAIN_S - LONG_S)
    unanswered = runtime.give_up()
    await runtime.durable()
    runtime.transactions.close()
    if unanswered:
        logger.warning("%d requests were not finished within %g s; the node stops without them", unanswered, DRAIN_S)
    mesh, departure.has_answered = runtime.output.mesh, True
    for link in mesh.clients if mesh is not None else ():
        if unanswered:
            link.pause()
        else:
            send_last_message(link)
    await _poll(lambda: bool(runtime.http_calls or (mesh is not None and mesh.waiting_bytes())), FLUSH_S)


async def _poll(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition was found false ``CHECKS`` times in a row, at most for ``seconds``.

    After a stall of the loop, messages that are still unread may make the condition true again. The loop reads them
    between the two checks.
    """
    idle = 0
    with trio.move_on_after(seconds):
        while idle < CHECKS:  # polled, because the many parts of the condition signal no changes, and a stop is rare
            idle = 0 if holds() else idle + 1
            await trio.sleep(POLL_S)
