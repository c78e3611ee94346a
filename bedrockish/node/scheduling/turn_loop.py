"""The schedule of a node's turns: time, place (at once where links are read, or in the loop's own task) and order.

A turn is a generator, so that it can be begun in one place and continued in another: it yields long actions, and
is sent their results. Waking a task of trio's for each message would cost more than most messages do.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import trio

from bedrockish.common.deadline_timer import Alarm
from bedrockish.engine.engine import Engine
from bedrockish.node.scheduling.writer_thread import WriterThread

T = TypeVar("T")
Action = Callable[[], object]  # something with the writer that takes long
Turn = Generator[Action, Any, None]


def is_cancellation(error: BaseException) -> bool:
    """Whether nothing but cancellations has come out of a task, or of a nursery, which raises them as a group."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_cancellation, error.exceptions))
    return isinstance(error, trio.Cancelled)


class FairQueue(Generic[T]):
    """Items of owners, of which one of each comes in turn, however much one owner asks for at once.

    Those of one owner come in the order in which it put them.

    Attributes:
        count: how many there are.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[object, deque[T]] = OrderedDict()
        self.count = 0

    def put(self, owner: object, item: T) -> None:
        """Put an item behind all others of its owner."""
        self._queues.setdefault(owner, deque()).append(item)
        self.count += 1

    def has(self, owner: object) -> bool:
        """Return whether an owner has items here."""
        return owner in self._queues

    def peek(self) -> T:
        """Return the next result of ``take`` without taking it."""
        return next(iter(self._queues.values()))[0]

    def take(self) -> T:
        """Take an item of the owner that has waited longest for a turn."""
        owner, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        self.count -= 1
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        return item

    def sift(self, wanted: Callable[[T], bool]) -> list[tuple[object, T]]:
        """Take out, with their owners, all items that are wanted; the others keep their turns."""
        found: list[tuple[object, T]] = []
        for owner, queue in list(self._queues.items()):
            left = deque[T]()
            for item in queue:
                if wanted(item):
                    found.append((owner, item))
                else:
                    left.append(item)
            if left:
                self._queues[owner] = left
            else:
                del self._queues[owner]
        self.count -= len(found)
        return found


class TurnLoop:
    """The loop that takes turns while there is work.

    Args:
        engine: its writer does the long actions.
        turn: begins one.
        has_work: whether there is work.
        waits: whether it is better to let others come before that.
        deadline: when there is work by itself, by ``time.monotonic``; None: not by itself.

    Attributes:
        failure: why the node ends.
        watch_time: goes on when it is time to, until cancelled; a task.
        read: reads the input of links; called before each turn of the task's, so that input that comes together is
            acted on together.
        away: called when the writer is going to work in another thread.
    """

    read: Callable[[], None]
    away: Callable[[], None]

    def __init__(
        self,
        engine: Engine,
        turn: Callable[[], Turn],
        has_work: Callable[[], bool],
        waits: Callable[[], bool],
        deadline: Callable[[], float | None],
    ) -> None:
        self._turn, self._has_work, self._waits = turn, has_work, waits
        self._wake = trio.Event()
        self._is_waiting = False  # the task, for work
        self._gathering = False  # links are being read, and acted on afterwards
        self._has_rung = False  # while links are read
        self._unfinished: tuple[Turn, Action] | None = None  # begun where links are read, with its long action
        self._missed = False  # the loop was woken while it waited for a thread
        self._writer = WriterThread(engine)
        self._alarm = Alarm(deadline, time.monotonic, lambda: self._wake.set())
        self.watch_time = self._alarm.run
        self.failure: BaseException | None = None
        self.read = self.away = lambda: None

    def ring(self) -> None:
        """Note that there is work; while links are read, it is done right after that."""
        if self._gathering:
            self._has_rung = True
        else:
            self._wake.set()

    def stop(self, error: BaseException) -> None:
        """Let ``run`` end with an error, after the turn under way."""
        self.failure = self.failure or error
        self._wake.set()

    def gather(self) -> None:
        """Note that links have input, which is going to be read: it is acted on together."""
        self._gathering = True

    def act(self) -> None:
        """Act on the links' input, at once if the task only waits for work.

        A long action is left to the task, and so is all input that comes until it is done. Reads that were answered
        where they arrived leave nothing to do, and no time at which it would be due.
        """
        self._gathering, has_rung, self._has_rung = False, self._has_rung, False
        if not (has_rung or self._has_work()):
            return
        if not self._is_waiting or self._wake.is_set() or self._waits():
            self._wake.set()
            return
        try:
            if self._has_work():
                turn = self._turn()
                action = next(turn, None)
                if action is not None:
                    self._unfinished = turn, action
        except BaseException as error:  # the node ends: in its own task, which all wait for
            self.stop(error)
            return
        if self._unfinished is not None or self._has_work():
            self._wake.set()
        else:
            self._alarm.look()

    async def run(self) -> None:
        """Take turns until ``stop``, and raise its error, or until cancelled, and end the turn that was begun."""
        try:
            while self.failure is None:
                await self._take_turn()
                if self.failure is None:
                    await self._next()
        finally:
            # The core has said things that rest on the rest of it; that it ends takes no longer than its actions.
            if self._unfinished is not None and self.failure is None:
                await self._take_turn()
            if self.failure is not None:  # also if it is cancelled at the same moment: it must not write then
                raise self.failure

    async def _take_turn(self) -> None:
        """Take a turn, or go on with one that was begun where links are read."""
        if self._unfinished is None:
            self.read()
            turn = self._turn()
            action = next(turn, None)
        else:
            (turn, action), self._unfinished = self._unfinished, None
        with suppress(StopIteration):
            while action is not None:
                action = turn.send(await self.elsewhere(action))

    async def _next(self) -> None:
        """Wait for something to do; always lets other tasks run."""
        if self._missed or self._has_work():
            self._missed = False
            await trio.lowlevel.checkpoint()
            return
        self._wake = trio.Event()
        self._alarm.look()
        self._is_waiting = True
        try:
            await self._wake.wait()
        finally:
            self._is_waiting = False

    async def elsewhere(self, action: Callable[[], T]) -> T:
        """Do something with the writer that takes long; see ``WriterThread``."""
        self._wake = trio.Event()
        self.away()
        try:
            return await self._writer.run(action)
        finally:
            self._missed = self._missed or self._wake.is_set()
