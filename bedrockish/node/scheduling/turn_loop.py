"""The schedule of a node's turns: when a turn is taken, and in which task (the reader of links, or the loop's own
task).

A turn is a generator, so that it can begin in one task and continue in another: it yields long actions, and is sent
their results. Waking a trio task for each message would cost more than handling most messages.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import trio

from bedrockish.common.deadline_timer import DeadlineTimer
from bedrockish.engine.engine import Engine
from bedrockish.node.scheduling.writer_thread import WriterThread

T = TypeVar("T")
Action = Callable[[], object]  # long work with the writing connection
Turn = Generator[Action, Any, None]


def is_cancellation(error: BaseException) -> bool:
    """Return whether an error is a cancellation, or a group of nothing but cancellations, as a nursery raises it."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_cancellation, error.exceptions))
    return isinstance(error, trio.Cancelled)


class FairQueue(Generic[T]):
    """A queue that takes one item of each owner in turn, however many items an owner puts at once.

    The items of one owner are taken in the order in which the owner put them.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[object, deque[T]] = OrderedDict()
        self.count = 0  # the number of items

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
        """Take the first item of the owner that has waited longest for a turn."""
        owner, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        self.count -= 1
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        return item

    def sift(self, wanted: Callable[[T], bool]) -> list[tuple[object, T]]:
        """Take out all wanted items, with their owners; the other items keep their turns."""
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
    """The loop that takes turns while there is work."""

    # Reads the input of all links; called before each turn, so that one turn handles all input together.
    read: Callable[[], None]
    before_thread: Callable[[], None]  # called before the writer is used in another thread

    def __init__(
        self,
        engine: Engine,  # has the writer, which runs the long actions
        turn: Callable[[], Turn],  # begins a turn
        has_work: Callable[[], bool],  # returns whether there is work
        waits: Callable[[], bool],  # returns whether the work should wait until more requests arrive
        # Returns the time, by ``time.monotonic``, at which work becomes due by itself; None if none does.
        deadline: Callable[[], float | None],
    ) -> None:
        self._turn, self._has_work, self._waits = turn, has_work, waits
        self._wake = trio.Event()
        self._is_waiting = False  # whether the task waits for work
        self._gathering = False  # whether links are being read; their input is handled afterwards
        self._wake_requested = False  # whether ``wake`` was called while links were read
        # A turn that began in the reader of links, and the long action with which the loop's task continues it.
        self._unfinished: tuple[Turn, Action] | None = None
        self._missed = False  # whether ``wake`` was called while the loop waited for a thread
        self._writer = WriterThread(engine)
        self._alarm = DeadlineTimer(deadline, time.monotonic, lambda: self._wake.set())
        self.watch_time = self._alarm.run  # a task that wakes the loop at the deadline, until cancelled
        self.failure: BaseException | None = None  # the error with which the node ends
        self.read = self.before_thread = lambda: None

    def wake(self) -> None:
        """Wake the loop, because there is work; while links are read, the next turn follows the reading anyway."""
        if self._gathering:
            self._wake_requested = True
        else:
            self._wake.set()

    def stop(self, error: BaseException) -> None:
        """End ``run`` with an error after the present turn."""
        self.failure = self.failure or error
        self._wake.set()

    def gather(self) -> None:
        """Delay turns until ``act``: the input of links is going to be read, and handled together afterwards."""
        self._gathering = True

    def act(self) -> bool:
        """Take a turn for the links' input: here if the loop's task is idle, else in that task.

        Return whether no work is left. Long actions run only in the loop's task, which also handles the input that
        arrives during an action. No turn is taken if the reading task has already answered all that arrived.
        """
        self._gathering, has_rung, self._wake_requested = False, self._wake_requested, False
        if not (has_rung or self._has_work()):
            return True
        if not self._is_waiting or self._wake.is_set() or self._waits():
            self._wake.set()
            return False
        try:
            if self._has_work():
                turn = self._turn()
                action = next(turn, None)
                if action is not None:
                    self._unfinished = turn, action
        except BaseException as error:  # the loop's task ends the node, because all other tasks wait for it
            self.stop(error)
            return False
        if self._unfinished is not None or self._has_work():
            self._wake.set()
            return False
        self._alarm.reschedule()
        return True

    async def run(self) -> None:
        """Take turns until ``stop``, and raise its error; or until cancelled, after the end of the turn under way."""
        try:
            while self.failure is None:
                await self._take_turn()
                if self.failure is None:
                    await self._wait_for_work()
        finally:
            # End the turn that has begun: the core relies on the rest of its effects.
            if self._unfinished is not None and self.failure is None:
                await self._take_turn()
            # Raised even if the task was cancelled at the same moment: after a failure, the node must not write.
            if self.failure is not None:
                raise self.failure

    async def _take_turn(self) -> None:
        """Take a turn, or continue a turn that began in the reader of links."""
        if self._unfinished is None:
            self.read()
            turn = self._turn()
            action = next(turn, None)
        else:
            (turn, action), self._unfinished = self._unfinished, None
        with suppress(StopIteration):
            while action is not None:
                action = turn.send(await self.run_in_thread(action))

    async def _wait_for_work(self) -> None:
        """Wait for work; let other tasks run in any case."""
        if self._missed or self._has_work():
            self._missed = False
            await trio.lowlevel.checkpoint()
            return
        self._wake = trio.Event()
        self._alarm.reschedule()
        self._is_waiting = True
        try:
            await self._wake.wait()
        finally:
            self._is_waiting = False

    async def run_in_thread(self, action: Callable[[], T]) -> T:
        """Run a long action with the writer in another thread; see ``WriterThread``."""
        self._wake = trio.Event()
        self.before_thread()
        try:
            return await self._writer.run(action)
        finally:
            self._missed = self._missed or self._wake.is_set()
