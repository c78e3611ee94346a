"""What vectors cost after many nodes came and left: a commit with their timelines named, and with them retired.

``tools/bench retired --left 50`` prints for both the bytes of a transaction of one row and of a GOSSIP, and
the processor time of encoding, decoding and comparing, in one run.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bedrockish.core.protocol.messages import Gossip, decode, encode
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import UPDATE, Change, encode_changes
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid, decode_transaction
from bedrockish_journal.model.vector import covers

TICKS = 1_000_000  # how long a timeline is, about
CLOCK = 1_800_000_000_000 << 22
ROUNDS = 20_000


def _commit(base: dict[str, int]) -> Transaction:
    row = Change("accounts", ("id", "balance"), UPDATE, 7, 7, (7, 100), (7, 200))
    access_set = AccessSet(frozenset({b"s:accounts\0"}), (), frozenset({b"t:accounts\0" + bytes(9)}))
    return Transaction(
        *(Txid(CLOCK, "node1"), base, CLOCK - (500 << 22), 1, 60, "0198f1c2-7d3a-7000-8000-000000000001"),
        *("serializable", ROWS, access_set, encode_changes([row]), b"\x81\x80"),
    )


def _took_us(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(ROUNDS // 5):
            call()
        best = min(best, (time.process_time() - began) / (ROUNDS // 5))
    return best * 1e6


def measure(left: int) -> list[tuple[str, float, float]]:
    """Return (what, with all timelines, without those that are retired) after so many nodes have left."""
    present = {f"node{number}": TICKS + number for number in (1, 2, 3)}
    every = {**{f"node{number}": TICKS + number for number in range(4, 4 + left)}, **present}
    commits = [_commit(base) for base in (every, present)]
    told = [Gossip(base, CLOCK, CLOCK, CLOCK, "0" * 16, 10_000, CLOCK >> 22) for base in (every, present)]
    rows: list[tuple[str, Sequence[float]]] = [
        ("bytes of a transaction of one row", [len(one.body) for one in commits]),
        ("bytes of a GOSSIP", [len(encode(one)) for one in told]),
        ("us to encode it", [_took_us(lambda one=one: replace(one, body=b"")) for one in commits]),  # type: ignore[misc]
        ("us to decode it", [_took_us(lambda one=one: decode_transaction(one.body)) for one in commits]),  # type: ignore[misc]
        ("us to see that it can be applied", [_took_us(lambda one=one: covers(every, one.base)) for one in commits]),  # type: ignore[misc]
        ("us to read a GOSSIP", [_took_us(lambda data=data: decode(data)) for data in map(encode, told)]),  # type: ignore[misc]
    ]
    return [(what, *found) for what, found in rows]  # type: ignore[misc]


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(prog="tools/bench retired", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--left", type=int, default=50, help="nodes that came, led commits and left (50)")
    for what, named, retired in measure(parser.parse_args(arguments).left):
        print(f"{what:34} named {named:9.1f}   retired {retired:9.1f}   ratio {named / retired:5.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
