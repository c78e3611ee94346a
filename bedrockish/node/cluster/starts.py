"""The starts of a node's process on its file, by which peers recognise an older state of the file.

The number of batches in a file is not enough: a file that was restored from a copy, and written to afterwards, may have
as many batches as the lost file, or more. So each start of the process writes a random id, and the number of batches at
that moment, to the file. A restored file lacks the last start of the lost file, or has a later start at a smaller
number of batches than the lost file had.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cbor2

STARTS = "starts"  # the key of the starts in a file and in a HELLO
STARTS_MAX = 256  # a file keeps at most this many starts, the last ones

Start = tuple[bytes, int]  # the id of a start, and the number of batches in the file at that moment


@dataclass(frozen=True, slots=True)
class SeenState:
    """The state of a file as another node has last seen it."""

    store: str = ""  # random id of the file; empty if none was seen
    batches: int = 0  # the number of durable batches in the file
    start: bytes = b""  # id of the start of the process that had written the last batch; empty if unknown


def add_start(kept: bytes | None, start: bytes, batches: int) -> bytes:
    """Return a file's encoded starts with a new start added; ``kept`` are the encoded starts so far."""
    return cbor2.dumps([*read_starts(cbor2.loads(kept) if kept else []), (start, batches)][-STARTS_MAX:])


def read_starts(told: object) -> list[Start]:
    """Return the starts of a file, or from a peer's message, oldest first; empty if they are malformed."""
    found: list[Start] = []
    for one in told if isinstance(told, list | tuple) else ():
        if not isinstance(one, list | tuple) or [type(part) for part in one] != [bytes, int]:
            return []
        found.append((one[0], one[1]))
    return found


def lacks(starts: Sequence[Start], batches: int, seen: SeenState) -> bool:
    """Return whether a file with these starts and batches lacks batches that were seen in it.

    A file that was last seen before its oldest kept start cannot be checked, and is accepted.
    """
    if batches < seen.batches:
        return True
    if not starts or not seen.start:
        return False  # a program of a release without starts has written the file, or has seen it
    place = next((place for place, (start, _) in enumerate(starts) if start == seen.start), None)
    if place is None:
        return starts[0][1] < seen.batches
    return place + 1 < len(starts) and starts[place + 1][1] < seen.batches
