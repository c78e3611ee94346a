"""The durable facts of a node, and the check that the facts of two nodes do not contradict each other.

The facts are durable entries and answers, and only grow. So a broken law stays broken, and it is enough to check the
laws when a node's facts have changed.
"""

from dataclasses import dataclass

from bedrockish.core.protocol.records import ENDED
from bedrockish_journal.model.access_set import conflict
from bedrockish_journal.model.transaction import Transaction, Txid
from tools.modelcheck.frozen import number_of, shared
from tools.modelcheck.place import Place


@dataclass(frozen=True)
class Facts:
    """The durable facts of a node, and the answers to its clients."""

    node: str  # the name of the node
    # (leader, tick, hash, number of the transaction) of each entry, in the order applied.
    journal: tuple[tuple[str, int, bytes, int], ...]
    aborted: frozenset[Txid]  # transactions that are rolled back
    told: tuple[tuple[str, str], ...]  # (command, answer to its client)
    safe: int  # the node's safe time


def facts_of(place: Place) -> Facts:
    durable = place.disk.durable
    return Facts(
        place.name,
        tuple((e.leader, e.tick, e.hash, number_of(e.transaction)) for e, _ in durable.order),
        frozenset(txid for txid, vote in durable.votes.items() if vote.accepted == (ENDED, False)),
        tuple(sorted(place.told.items())),
        durable.meta.get("safe", 0),
    )


def transaction(number: int) -> Transaction:
    found = shared(number)
    assert isinstance(found, Transaction)
    return found


def broken_law(one: Facts, other: Facts) -> tuple[str, str] | None:
    """Return a law that these nodes break, each alone or both together, and how; None if they break no law."""
    return _half(one, other) or (_half(other, one) if one is not other else None)


def _half(one: Facts, other: Facts) -> tuple[str, str] | None:
    places = {(leader, tick): (hash_, number) for leader, tick, hash_, number in other.journal}
    mine = {number for *_, number in one.journal}
    for leader, tick, hash_, number in one.journal:
        txid = transaction(number).txid
        if txid in other.aborted:
            return "one outcome", f"{one.node} has {name(number)} at {leader}{tick}, {other.node} has it rolled back"
        if places.get((leader, tick), (hash_, 0))[0] != hash_:
            return "timelines do not fork", f"{leader}{tick} is one thing at {one.node}, another at {other.node}"
        if txid.clock <= other.safe and all(number != theirs for *_, theirs in other.journal):
            return (
                "nothing appears below safe",
                f"{name(number)} is committed at {one.node}, and {other.node} is past it",
            )
    for number in mine:
        for theirs in {number for *_, number in other.journal} - {number}:
            found = _both(one, other, number, theirs)
            if found is not None:
                return found
    for command, words in one.told:
        kept = [(f"{leader}{tick}", transaction(number).commands) for leader, tick, _, number in other.journal]
        if words != "read" and any(place == words and command not in found for place, found in kept):
            return "no acknowledged commit is lost", f"{command} was told to be {words}, which is something else"
        is_own = one is other and words[:1].isupper()
        if is_own and not any(place == words and command in found for place, found in kept):
            return "no acknowledged commit is lost", f"{one.node} told of {command} at {words} and does not have it"
    return None


def _both(one: Facts, other: Facts, left: int, right: int) -> tuple[str, str] | None:
    """Check a commit of one node against a commit of another; return the broken law and a text about it, or None."""
    x, y = transaction(left), transaction(right)
    if twice := set(x.commands).intersection(y.commands):
        return "a command happens once", f"{min(twice)} is committed as {name(left)} and as {name(right)}"
    if conflict(x.access_set, y.access_set) is None or _has_seen(x, one, right) or _has_seen(y, other, left):
        return None
    return "no concurrent conflicting commits", f"{name(left)} and {name(right)} meet, and neither has seen the other"


def _has_seen(x: Transaction, at: Facts, other: int) -> bool:
    """Return whether a commit has seen another one.

    The node ``at`` has applied the commit, and so its base, and knows all labels of the base's transactions.
    """
    return any(number == other and x.base.get(leader, 0) >= tick for leader, tick, _, number in at.journal)


def name(number: int) -> str:
    found = transaction(number)
    return f"{found.command} ({found.txid})"
