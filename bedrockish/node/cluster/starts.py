"""The starts of a node's process on its file: by them others tell whether the file is all that it was.

How much a file has had written to it tells no more than how long it is. One that was put back from a copy, and was
written to since, may be as long as the one that is gone, or longer. So each start of the process puts a random id into
the file, and how long the file was then: one that was put back lacks the last start of the one that is gone, or goes
on from where that one was shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cbor2

STARTS = "starts"  # the name under which a file keeps them, and under which others are told
STARTS_MAX = 256  # of which a file keeps the last

Start = tuple[bytes, int]  # its id, and the batches in the file when it began


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a file as another node has last seen it.

    Attributes:
        store: random id of the file; empty if none was seen.
        batches: how many were durable in it.
        start: id of the start of the process that had written the last of them; empty if it did not say.
    """

    store: str = ""
    batches: int = 0
    start: bytes = b""


def add_start(kept: bytes | None, start: bytes, batches: int) -> bytes:
    """Return the encoded starts for a file to keep when a process begins on it: those kept before, and the new one."""
    return cbor2.dumps([*read_starts(cbor2.loads(kept) if kept else []), (start, batches)][-STARTS_MAX:])


def read_starts(told: object) -> list[Start]:
    """Return the starts that a file keeps, or that a peer tells of, oldest first; empty if they are malformed."""
    found: list[Start] = []
    for one in told if isinstance(told, list | tuple) else ():
        if not isinstance(one, list | tuple) or [type(part) for part in one] != [bytes, int]:
            return []
        found.append((one[0], one[1]))
    return found


def lacks(starts: Sequence[Start], batches: int, seen: Seen) -> bool:
    """Return whether a file that has these starts and batches lacks something that was seen of it.

    A file that was seen before the first of the starts that it still keeps is accepted: it cannot be checked.
    """
    if batches < seen.batches:
        return True
    if not starts or not seen.start:
        return False  # one of both programs is from before there were starts
    place = next((place for place, (start, _) in enumerate(starts) if start == seen.start), None)
    if place is None:
        return starts[0][1] < seen.batches
    return place + 1 < len(starts) and starts[place + 1][1] < seen.batches
