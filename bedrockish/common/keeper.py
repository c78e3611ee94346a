"""A thread that regularly maintains objects of this program, such as idle clients and unread snapshots."""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from bedrockish.common.forks import watch_forks
from bedrockish.common.machine import start_thread, threads_or_unavailable
from bedrockish.common.pauses import monotonic

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Keeper(Generic[T]):
    """A thread that maintains objects; the first object starts it. It drops objects that are garbage-collected.

    Args:
        every_s: the seconds between two rounds over all objects.
        maintain: maintains an object; gets the seconds since the last round.
    """

    def __init__(self, name: str, every_s: float, maintain: Callable[[T, float], None]) -> None:
        self._name, self._every_s, self._maintain = name, every_s, maintain
        self._lock = threading.Lock()
        self._kept: weakref.WeakSet[T] = weakref.WeakSet()
        self._is_running = False
        watch_forks(self)

    def after_fork(self) -> None:
        """Forget the thread, because a fork does not copy it."""
        self._lock, self._is_running = threading.Lock(), False

    def add(self, one: T) -> None:
        """Maintain an object from now on.

        Raises:
            UnavailableError: the machine gives no further thread.
        """
        with self._lock:
            if not self._is_running:
                with threads_or_unavailable():
                    start_thread(threading.Thread(target=self._run, name=self._name, daemon=True).start)
                self._is_running = True
            self._kept.add(one)

    def _run(self) -> None:
        last = monotonic()
        while True:
            time.sleep(self._every_s)
            now = monotonic()
            self._maintain_all(now - last)
            last = now

    def _maintain_all(self, elapsed_s: float) -> None:
        with self._lock:
            kept = list(self._kept)
        for one in kept:
            try:
                self._maintain(one, elapsed_s)
            except Exception:  # the thread continues with the other objects of the program
                logger.exception("%s: %r failed; the keeper drops it", self._name, one)
                with self._lock:
                    self._kept.discard(one)
