"""Claims of a node's file that no hash covers, compared with the file's journal and with other files.

The queries are SQL over one file, so that the verifier and the audits run the same queries.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cbor2

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.model.membership import Membership, read_membership
from bedrockish_journal.model.membership_steps import wrong_membership, wrong_step
from bedrockish_journal.model.transaction import MEMBERS, decode_transaction

Ask = Callable[[str, tuple[Any, ...]], Iterable[Sequence[Any]]]  # runs a query, on a file or at a node
SHOWN_MAX = 20  # the most findings of each kind

# A running node shows one of its own tables only to a statement whose text has the table's name: no ``?`` here.
_HAS = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{}'"
_META = "SELECT value FROM bedrockish_meta WHERE key = ?"
VOIDS = "SELECT key FROM bedrockish_meta WHERE key >= 'void:' AND key < 'void;'"
_MEMBERS = f"SELECT leader, tick, body FROM bedrockish_journal WHERE kind = '{MEMBERS}' AND repeat = 0 ORDER BY seq"
_MARKS = "SELECT leader, tick, hash, clock, origin FROM bedrockish_pruned ORDER BY leader"
_REMOVED = "SELECT clock, origin FROM bedrockish_pruned ORDER BY clock DESC, origin DESC LIMIT 1"
_LIVE = f"""SELECT command FROM bedrockish_past AS p
  WHERE EXISTS (SELECT 1 FROM main.bedrockish_journal AS j WHERE j.command = p.command AND j.repeat = 0)
    OR EXISTS (SELECT 1 FROM bedrockish_joined AS j WHERE j.command = p.command) LIMIT {SHOWN_MAX}"""
_NEVER = f"SELECT command FROM bedrockish_past WHERE (clock, origin) > (?, ?) LIMIT {SHOWN_MAX}"
_PACKS = f"""SELECT leader, first, last FROM (SELECT leader, first, last,
      (SELECT count(*) FROM main.bedrockish_journal AS j
        WHERE j.leader = p.leader AND j.tick BETWEEN p.first AND p.last AND j.label = x'') AS packed,
      lag(last) OVER (PARTITION BY leader ORDER BY first, last) AS before
    FROM bedrockish_packed AS p)
  WHERE packed <> last - first + 1 OR first <= before LIMIT {SHOWN_MAX}"""


class PrunedBeginning(NamedTuple):
    """The present beginning of a timeline of which entries were removed."""

    leader: str  # the timeline
    tick: int  # the last tick that was removed
    hash: bytes  # the hash of the entry at ``tick``; the ``prev`` of the next entry
    # ``clock`` and ``origin``: the greatest (clock, origin) of a removed transaction.
    clock: int
    origin: str
    # The removed memberships, oldest first: (tick, encoded membership); ``marks`` leaves them out.
    changed: tuple[tuple[int, bytes], ...] = ()


@dataclass(slots=True)
class Claims:
    """Statements of a file about its cluster: claims that do not hold, the memberships, the schema's first size."""

    wrong: list[Finding] = field(default_factory=list)  # the claims that do not hold
    # All memberships that the file has, by version.
    memberships: dict[int, Membership] = field(default_factory=dict)
    # The number of objects in the schema at the founding of the cluster; None if the file does not record it.
    began_with: int | None = None


def read_claims(ask: Ask, node: str, *, whole: bool = True) -> Claims:
    """Compare the claims of a file with its own journal.

    Args:
        node: the name of the file in findings.
        whole: whether ``ask`` can read all of the node's own tables, as in a file, but not at a running node.
    """
    found = Claims()
    has_meta = has(ask, "bedrockish_meta")
    for leader, tick, said in memberships(ask):
        place = f"membership {said.version}" if leader is None else f"{leader}{tick} (membership {said.version})"
        found.memberships.setdefault(said.version, said)
        for text in wrong_membership(said):
            found.wrong.append(Finding("members", node, leader, tick, text=f"{place} {text}"))
        before = found.memberships.get(said.version - 1)
        for text in wrong_step(before, said) if before is not None else ():
            found.wrong.append(Finding("members", node, leader, tick, text=f"{place} {text}"))
    if has_meta:
        found.wrong += _void(ask, node, found.memberships)
        found.began_with = _number(value(ask, "began_with")) or 0
        if whole:
            found.wrong += _store(ask, node, found.memberships)
    if whole:
        found.wrong += _past(ask, node)
        found.wrong += _packs(ask, node)
    return found


def disagreements(files: Mapping[str, Claims]) -> Iterator[Finding]:
    """Yield a finding for each claim that has to be the same in all files, and differs."""
    said = {node: one.began_with for node, one in files.items() if one.began_with is not None}
    if len(set(said.values())) > 1:
        texts = ", ".join(f"{count} in the file of {node}" for node, count in sorted(said.items()))
        node = min(said, key=lambda one: (list(said.values()).count(said[one]), one))
        yield Finding("members", node, text=f"the number of objects at the founding differs: {texts}")


def memberships(ask: Ask) -> Iterator[tuple[str | None, int | None, Membership]]:
    """Yield timeline, tick and content of each membership; other laws report malformed ones."""
    packed: list[tuple[str | None, int | None, object]] = []
    if has(ask, "bedrockish_meta"):
        packed.append((None, None, value(ask, "bootstrap")))
        with suppress(EntryMalformedError):
            for name, changes in removed_memberships(value(ask, "pruned_members")).items():
                packed += ((name, tick, data) for tick, data in changes)
    for leader, tick, body in ask(_MEMBERS, ()):
        try:
            packed.append((str(leader), int(tick), decode_transaction(body).changes))
        except (EntryMalformedError, TypeError, ValueError):
            continue
    found = []
    for leader, tick, data in packed:
        try:
            found.append((leader, tick, read_membership(data if isinstance(data, bytes) else b"")))
        except EntryMalformedError:
            continue
    yield from sorted(found, key=lambda one: one[2].version)


def removed_memberships(kept: object) -> dict[str, list[tuple[int, bytes]]]:
    """Return timeline -> (tick, content) of each membership whose entry was removed; ``kept`` is the file's record.

    Raises:
        EntryMalformedError: the record is malformed.
    """
    if kept is None:
        return {}
    try:
        packed = cbor2.loads(kept if isinstance(kept, bytes) else b"")
        return {str(leader): [(int(tick), _bytes(data)) for tick, data in found] for leader, found in packed.items()}
    except (cbor2.CBORError, ValueError, TypeError, AttributeError) as error:
        raise EntryMalformedError(f"the removed memberships cannot be read: {error}; fill this node again") from error


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):  # ``bytes(5)`` would be five zero bytes
        raise TypeError(f"a {type(value).__name__} in place of bytes")
    return value


def marks(ask: Ask) -> tuple[PrunedBeginning, ...]:
    """Return the marks of all timelines of which entries were removed; empty for a file of an earlier version.

    Raises:
        EntryMalformedError: a mark is malformed.
    """
    found = tuple(PrunedBeginning(*row) for row in ask(_MARKS, ())) if has(ask, "bedrockish_pruned") else ()
    for mark in found:
        is_typed = list(map(type, mark[:5])) == [str, int, bytes, int, str]
        if not is_typed or mark.tick < 1 or mark.clock < 0 or len(mark.hash) != 32:
            raise EntryMalformedError(
                f"the row of timeline {mark.leader!r} in the table bedrockish_pruned is malformed; fill this node again"
            )
    return found


def skipped(ask: Ask) -> set[str]:
    """Return the transactions that a node skipped by an operator's decision, because they fit the tables of no node."""
    return {str(key).removeprefix("void:") for (key,) in ask(VOIDS, ())}


def _void(ask: Ask, node: str, memberships: Mapping[int, Membership]) -> Iterator[Finding]:
    marked = skipped(ask)
    said = {str(txid) for one in memberships.values() for txid in one.void}
    for txid in sorted(marked - said):
        text = f"the file skips the changes of {txid}, and no membership in its journal has an operator's decision to"
        yield Finding("void", node, text=f"{text}; if there was one, run 'bedrockish member resolve' again")
    for txid in sorted(said - marked):
        yield Finding(
            "void", node, text=f"a membership says that the changes of {txid} are skipped, and the file applies them"
        )


def _store(ask: Ask, node: str, memberships: Mapping[int, Membership]) -> Iterator[Finding]:
    store = value(ask, "store")
    bound = {said.members[node].store for said in memberships.values() if node in said.members} - {""}
    if isinstance(store, str) and bound and store not in bound:
        yield Finding(
            "members", node, text=f"the file says that it is {node}'s, and the memberships bind {node} to another file"
        )


def _past(ask: Ask, node: str) -> Iterator[Finding]:
    if not has(ask, "bedrockish_past"):
        return
    removed = next(iter(ask(_REMOVED, ())), None) if has(ask, "bedrockish_pruned") else None
    for (command,) in ask(_NEVER, tuple(removed or (0, ""))):
        text = f"bedrockish_past has the command {command!r}, whose entry is later than all removed entries"
        yield Finding("command", node, text=text)
    if has(ask, "bedrockish_joined"):
        for (command,) in ask(_LIVE, ()):
            yield Finding("command", node, text=f"bedrockish_past has the command {command!r}, which is in the journal")


def _packs(ask: Ask, node: str) -> Iterator[Finding]:
    if has(ask, "bedrockish_packed"):
        for leader, first, last in ask(_PACKS, ()):
            text = f"bedrockish_packed has {leader}{first} to {leader}{last}, but not all of these are packed, "
            text += "or another pack has some"
            yield Finding("columns", node, str(leader), _number(first), text=text)


def has(ask: Ask, table: str) -> bool:
    """Return whether a file has the node's table of this name."""
    return any(row[0] for row in ask(_HAS.format(table), ()))


def value(ask: Ask, key: str) -> object:
    """Return the value of a key of ``bedrockish_meta``, or None."""
    return next((row[0] for row in ask(_META, (key,))), None)


def _number(value: object) -> int | None:
    return value if type(value) is int else None
