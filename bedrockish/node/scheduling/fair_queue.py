"""Who comes next: one of each client in turn, however much one of them asks for at once."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items of owners; those of one owner come in the order in which it put them."""

    def __init__(self) -> None:
        self._queues: OrderedDict[object, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: object, item: T) -> None:
        """Put an item behind all others of its owner."""
        self._queues.setdefault(owner, deque()).append(item)
        self._count += 1

    def peek(self) -> T:
        """Return what ``take`` would."""
        return next(iter(self._queues.values()))[0]

    def take(self) -> T:
        """Take an item of the owner who has waited longest for a turn."""
        owner, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        self._count -= 1
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
        self._count -= len(found)
        return found
