"""The language of the traces: a line is a verb, its answer is what happened, one printed line each.

A file is a sequence of blocks, parted by blank lines: comments, a line, ``----``, the answer. ``README.md`` has
the verbs. Quiet lines still happen; they are only not printed.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bedrockish_journal.model.errors import ReplayBlockedError
from bedrockish_journal.model.order import may_apply
from bedrockish_journal.model.vector import Vector
from tests.traces.orders import all_orders, parse_vector
from tests.traces.table import LOUD, PLAIN, QUIET, Line, Script, SlipError, Table

LEADS = re.compile(r"(?P<node>[A-Z])(?P<tick>\d+): (?P<verb>BEGIN|ROLLBACK|RECOVER) (?P<rest>.+)")
IMPLIED = ("APPROVE ", "REJECT ")  # messages that only ever go to one node, whose name is in all heads


@dataclass(frozen=True)
class Written:
    """An entry as the gist writes one: its place and its full vector."""

    place: tuple[str, int]
    after: Vector


@dataclass
class Reader:
    """Reads the lines of one file."""

    names: list[str] = field(default_factory=list)
    table: Table | None = None
    shelf: list[Written] = field(default_factory=list)

    @property
    def at(self) -> Table:
        if self.table is None:
            raise SlipError("a trace begins with: cluster A B C")
        return self.table

    def say(self, line: str) -> list[str]:
        """Do what a line says and return what happened."""
        if self.table is not None:
            self.table.lines.clear()
        found = LEADS.fullmatch(line)
        if found:
            self._lead(**found.groupdict())
            return list(self._happened())
        answer = self._verb(*line.split(" ", 1))
        return answer if answer is not None else list(self._happened())

    def _lead(self, node: str, tick: str, verb: str, rest: str) -> None:
        if self.at.place(node).tick != int(tick):
            raise SlipError(f"{node} has committed {self.at.place(node).tick} of its own, not {tick}")
        if verb == "BEGIN":
            self.at.begin(node, script(rest))
        elif verb == "ROLLBACK":
            self.at.give_up(node, rest)
        else:
            self.at.recover(node, rest)

    def _verb(self, verb: str, rest: str = "") -> list[str] | None:
        words = rest.split()
        verbs: dict[str, Callable[[], list[str] | None]] = {
            "cluster": lambda: self._cluster(words),
            "settle": lambda: self.at.settle(),
            "deliver": lambda: self._on_links(self.at.deliver, words),
            "drop": lambda: self._on_links(self.at.drop, words),
            "hold": lambda: self.at.held.update(self._links(words)),
            "release": lambda: self.at.held.difference_update(self._links(words)),
            "cut": lambda: self._pairs(self.at.cut, words),
            "mend": lambda: self._pairs(self.at.mend, words),
            "slow": lambda: self._disk(words[1], slow=True),
            "disk": lambda: self.at.sync(words[0]),
            "quick": lambda: self._disk(words[1], slow=False),
            "crash": lambda: self.at.crash(words[0]),
            "restart": lambda: self.at.restart(words[0]),
            "wait": lambda: self.at.wait(seconds(words[0])),
            "quiet": lambda: self._level(QUIET),
            "plain": lambda: self._level(PLAIN),
            "loud": lambda: self._level(LOUD),
            "journal": lambda: self._journal(words[0]),
            "rows": lambda: self._rows(words),
            "vectors": lambda: self._vectors(),
            "pending": lambda: self._pending(),
            "list": lambda: self._list(words[0], rest.partition(" ")[2]),
            "order": lambda: self._order(words),
            "orders": lambda: self._orders(),
            "may": lambda: self._may(rest),
        }
        if verb not in verbs:
            raise SlipError(f"there is no verb {verb!r}")
        return verbs[verb]()

    # -- what happened ---------------------------------------------------------------------------------------------

    def _happened(self) -> Iterator[str]:
        """Yield the lines; the same message to several peers is one line, and one to all peers names none."""
        groups: list[tuple[Line, list[str]]] = []
        for line in self.at.lines:
            if line.level > self.at.level:
                continue
            last = groups[-1][0] if groups else None
            if line.flight is None:
                groups.append((line, []))
            elif last and last.flight and (last.label, last.text) == (line.label, line.text):
                groups[-1][1].append(line.flight.receiver)
            else:
                groups.append((line, [line.flight.receiver]))
        for line, receivers in groups:
            everybody = len(receivers) == len(self.names) - 1 and len(receivers) > 1
            implied = everybody or not receivers or line.text.startswith(IMPLIED)
            yield line.label + line.text + ("" if implied else f" -> {' '.join(receivers)}")
        if not groups and self.at.level != QUIET:
            yield "nothing is said"

    # -- verbs -----------------------------------------------------------------------------------------------------

    def _cluster(self, words: list[str]) -> list[str]:
        plain = words[-3:] == ["with", "plain", "majorities"]
        self.names = words[:-3] if plain else words
        self.table = Table(self.names, plain=plain)
        return ["ok"]

    def _level(self, level: int) -> list[str]:
        self.at.level = level
        return ["ok"]

    def _disk(self, name: str, *, slow: bool) -> list[str] | None:
        self.at.place(name).slow = slow
        if slow:
            return ["ok"]
        self.at.sync(name)
        return None

    def _on_links(self, do: Callable[[list[str], list[str], list[str]], None], words: list[str]) -> None:
        arrow = words.index("->")
        receivers = [word for word in words[arrow + 1 :] if word in self.names]
        do(words[:arrow], receivers, [word for word in words[arrow + 1 :] if word not in self.names])

    def _links(self, words: list[str]) -> list[tuple[str, str]]:
        if "->" in words:
            arrow = words.index("->")
            return [(one, other) for one in words[:arrow] for other in words[arrow + 1 :]]
        return [pair for name in words for other in self.names for pair in ((name, other), (other, name))]

    def _pairs(self, do: Callable[[str, str], None], words: list[str]) -> None:
        dash = words.index("-")
        for one in words[:dash]:
            for other in words[dash + 1 :]:
                do(one, other)

    def _journal(self, name: str) -> list[str]:
        journal = self.at.place(name).disk.live.journal
        printed = [self.at.printer.entry(entry) + (", a repeat" if repeat else "") for entry, repeat in journal]
        return printed or ["empty"]

    def _rows(self, names: list[str]) -> list[str]:
        return [
            f"{name}: " + (", ".join(f"{key}={value}" for key, value in sorted(rows.items())) or "no rows")
            for name in names
            for rows in [self.at.place(name).disk.live.rows]
        ]

    def _vectors(self) -> list[str]:
        return [
            f"{name} {self.at.printer.vector(place.disk.live.applied)}" + ("" if place.node else " and is down")
            for name, place in self.at.places.items()
        ]

    def _pending(self) -> list[str]:
        printed = []
        for name, place in self.at.places.items():
            if place.node is None:
                printed.append(f"{name} is down")
            else:
                pending = sorted(self.at.names[txid] for txid in place.node.state.votes.pending.transactions)
                printed.append(f"{name} holds {', '.join(pending) or 'nothing'}")
        return printed

    # -- lists of entries, without a conversation ------------------------------------------------------------------

    def _list(self, place: str, text: str) -> list[str]:
        leader, tick = place[0], int(place[1:])
        after = parse_vector(text, self.names)
        if after.pop(leader) != tick:
            raise SlipError(f"{place} does not stand at {tick} in {text}")
        self.shelf.append(Written((leader, tick), after | ({leader: tick - 1} if tick > 1 else {})))
        return ["ok"]

    def _order(self, words: list[str]) -> list[str]:
        applied: dict[str, int] = {}
        named = {f"{leader}{tick}": entry for entry in self.shelf for leader, tick in [entry.place]}
        for word in words:
            if not may_apply(named[word], applied):
                return [f"no: {word} may not follow {self.at.printer.vector(applied)}"]
            applied[named[word].place[0]] = named[word].place[1]
        return [f"yes: it leads to {self.at.printer.vector(applied)}"]

    def _orders(self) -> list[str]:
        blocked: tuple[tuple[str, int], ...] = ()
        try:
            orders = list(all_orders(self.shelf))
        except ReplayBlockedError as error:
            blocked = tuple(error.blocked)
            orders = list(all_orders(entry for entry in self.shelf if entry.place not in blocked))
        printed = [" ".join(f"{leader}{tick}" for leader, tick in (e.place for e in order)) for order in orders]
        return [*printed, *(f"{leader}{tick} can never be applied" for leader, tick in blocked)]

    def _may(self, rest: str) -> list[str]:
        """``may A [2, 2, 3, *, *] follow [1, 2, 3, 4, 5]``: only the components that are stated are compared."""
        leader, text, applied = rest[0], *rest[2:].split(" follow ")
        after = parse_vector(text, self.names)
        tick = after.pop(leader)
        return ["yes" if may_apply(Written((leader, tick), after), parse_vector(applied, self.names)) else "no"]


def script(rest: str) -> Script:
    """Read ``Alice writes x y reads z``, with ``strict``, ``as Bob`` (a command id) or ``after Bob`` (session)."""
    name, *words = rest.split()
    found: dict[str, list[str]] = {"reads": [], "writes": [], "as": [], "after": [], "strict": [], "members": []}
    into: list[str] | None = None
    for word in words:
        if word in found:
            into = found[word]
            if word == "strict":
                into.append(word)
        elif into is None:
            raise SlipError(f"{word!r} should follow writes, reads or as")
        else:
            into.append(word)
    return Script(
        name,
        tuple(found["reads"]),
        tuple(found["writes"]),
        strict=bool(found["strict"]),
        command=found["as"][0] if found["as"] else name,
        members=tuple(found["members"]),
        after=found["after"][0] if found["after"] else "",
    )


def seconds(text: str) -> float:
    """Read ``5s`` or ``300ms``."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the comments and the line of each block; a block may be comments only."""
    for block in re.split(r"\n{2,}", text.strip("\n")):
        lines = block.split("\n")
        notes = [line for line in lines if line.startswith("#")]
        said = [line for line in lines[len(notes) :] if line]
        yield "".join(f"{note}\n" for note in notes), said[0] if said else ""


def play(text: str) -> str:
    """Return the file as it should be: the same comments and commands, and the current output."""
    reader, told = Reader(), []
    for notes, line in blocks(text):
        if not line:
            told.append(notes)
            continue
        try:
            answer = "\n".join(reader.say(line))
        except SlipError as error:
            raise SlipError(f"at {line!r}: {error}") from error
        told.append(f"{notes}{line}\n----\n{answer}\n" if answer else f"{notes}{line}\n----\n")
    return "\n".join(told)
