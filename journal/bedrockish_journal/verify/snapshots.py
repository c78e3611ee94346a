"""Checks of the snapshot that each transaction ran on (safe time, version of the schema) and of given-up transactions.

Each entry of all files is added once, as a few numbers, so that journals of millions of entries can be checked.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import itemgetter

from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.model.transaction import SCHEMA, Txid

SHOWN_MAX = 1_000
_MOST = (1 << 63) - 1
Places = Callable[[Txid], list[tuple[str, int]]]


class TransactionSnapshots:
    """The snapshots on which the transactions of several journals ran."""

    def __init__(self) -> None:
        self._leaders: dict[str, int] = {}
        # For each entry: its place, its clock and its claims about its snapshot. ``_saw`` has, for each leader, the
        # tick that each entry had seen.
        self._led, self._at, self._clock, self._safe, self._schema, self._config = (array("Q") for _ in range(6))
        self._saw: list[array[int]] = []
        self._adopted: set[Txid] = set()  # transactions that may have several labels
        self._changes: dict[Txid, tuple[int, int]] = {}  # schema changes: activation clock, and the version before
        self._given_up: list[tuple[str, int, Txid, tuple[Txid, ...]]] = []

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        transaction, txid = entry.transaction, entry.txid
        numbers = (transaction.safe, transaction.schema, transaction.config, transaction.activates)
        if max(*numbers, *entry.after.values(), entry.tick, txid.clock) > _MOST:
            return  # too large for any node: the number was altered, as other laws report
        number = len(self._at)
        self._led.append(self._leader(entry.leader))
        values = (entry.tick, txid.clock, transaction.safe, transaction.schema, transaction.config)
        for column, value in zip((self._at, self._clock, self._safe, self._schema, self._config), values, strict=True):
            column.append(value)
        for name, tick in entry.after.items():
            saw = self._saw[self._leader(name)]
            saw.extend([0] * (number - len(saw)))
            saw.append(tick)
        if entry.adopted_from is not None or entry.leader != txid.leader:
            self._adopted.add(txid)
        if transaction.kind == SCHEMA:
            self._changes[txid] = transaction.activates, transaction.schema
        if transaction.rollbacks:
            self._given_up.append((*entry.place, txid, transaction.rollbacks))

    def _leader(self, name: str) -> int:
        if name not in self._leaders:
            self._leaders[name] = len(self._saw)
            self._saw.append(array("Q"))
        return self._leaders[name]

    def check(self, node: str, retired: Mapping[str, int], places: Places) -> Iterator[Finding]:
        """Yield the findings, after all entries were added.

        Args:
            node: the nodes that the files belong to, as the findings name them.
            retired: the timelines that vectors omit, each with the membership that retired it.
            places: returns the places of a transaction in the files.
        """
        names = list(self._leaders)
        double = {place for txid in self._adopted if len(found := places(txid)) > 1 for place in found}

        def finding(law: str, number: int, text: str) -> Finding:
            leader, tick = names[self._led[number]], self._at[number]
            return Finding(law, node, leader, tick, text=f"{leader}{tick} {text}")

        yield from self._check_given_up(node, places)
        for number, text in islice(self._unseen(names, double, retired), SHOWN_MAX):
            yield finding("safe", number, text)
        for number, text in islice(self._other_schemas(), SHOWN_MAX):
            yield finding("schema", number, text)

    def _check_given_up(self, node: str, places: Places) -> Iterator[Finding]:
        for leader, tick, txid, given_up in self._given_up:
            for other in given_up:
                text = f"{leader}{tick} says that {txid.leader} has given up {other}"
                if other.leader != txid.leader:
                    yield Finding("rollbacks", node, leader, tick, str(txid), text=f"{text}, which another node began")
                elif found := places(other):
                    where = "".join(map(str, found[0]))
                    yield Finding(
                        "rollbacks", node, leader, tick, str(txid), text=f"{text}, which is committed as {where}"
                    )

    def _unseen(
        self, names: list[str], double: set[tuple[str, int]], retired: Mapping[str, int]
    ) -> Iterator[tuple[int, str]]:
        """Yield each entry that had not seen all entries with a clock up to its safe time, and the fault.

        A transaction with several labels is left out, since an entry may have seen either label.
        """
        by_clock = sorted(range(len(self._at)), key=self._clock.__getitem__)
        last, place = [0] * len(names), 0  # the last tick of each timeline with a clock up to ``safe``
        for number in sorted(range(len(self._at)), key=self._safe.__getitem__):
            safe = self._safe[number]
            while place < len(by_clock) and self._clock[by_clock[place]] <= safe:
                one = by_clock[place]
                if (names[self._led[one]], self._at[one]) not in double:
                    last[self._led[one]] = max(last[self._led[one]], self._at[one])
                place += 1
            for leader, tick in enumerate(last):
                saw = self._saw[leader][number] if number < len(self._saw[leader]) else 0
                is_retired = not saw and retired.get(names[leader], _MOST) <= self._config[number]
                if tick > saw and not is_retired:
                    what = f"{names[leader]}{tick}, which is not later than that"
                    yield number, f"ran on a snapshot that was safe up to {safe:x}, and had not seen {what}"
                    break

    def _other_schemas(self) -> Iterator[tuple[int, str]]:
        """Yield each entry that ran on another schema version than that in force at its clock, and the fault."""
        changes = sorted(self._changes.values())
        if not changes:
            usual = Counter(self._schema).most_common(1)
            first, activated = (usual[0][0] if usual else 0), list[int]()
        else:
            first, activated = changes[0][1], [*map(itemgetter(0), changes)]
            if not activated[0]:
                return  # such a change is in force once its entry is applied: at each node at another moment
        for number, schema in enumerate(self._schema):
            due = first + bisect_right(activated, self._clock[number])
            if schema != due:
                yield number, f"says that it ran on version {schema} of the schema, and version {due} was in force"
