"""The proposal of a recovery, from the answers of at least a majority (docs/protocol.md, "When a leader dies").

This is the theorem that a recovery rests on, and nothing else: no state, no messages. ``tests/core/test_judge.py``
compares it with everything that can have happened in clusters of up to five voters.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bedrockish.core.protocol.messages import Standing
from bedrockish.core.state.settings import majority
from bedrockish_journal.model.transaction import Txid


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one voter about a transaction, given with its promise to accept no lower ballot.

    Attributes:
        standing: whether it holds the transaction (``Standing``).
        accepted: the highest (ballot, commit?) that it has accepted, or None.
        blockers: the conflicting transactions that are pending there.
        ended: conflicting transactions that cannot commit any more, or have, as far as it knows: it knows their outcome
            or has accepted their abort.
        safe: the clock up to which all transactions have ended, and the voter remembers none of the ends.
    """

    standing: int
    accepted: tuple[int, bool] | None = None
    blockers: frozenset[Txid] = frozenset()
    ended: frozenset[Txid] = frozenset()
    safe: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """Propose to commit it."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Propose to abort it."""


@dataclass(frozen=True, slots=True)
class First:
    """No proposal yet: it may have been committed, or not. The blockers have to end first; then ask again."""

    blockers: frozenset[Txid]


COMMIT, ABORT = Commit(), Abort()
Verdict = Commit | Abort | First


def _forgotten(answer: Answer) -> int:
    """Return the clock up to which a voter may have forgotten how transactions ended."""
    # A voter ends a transaction pending there when its safe time passes it, so its safe time is below every blocker.
    return min([answer.safe, *(blocker.clock - 1 for blocker in answer.blockers)])


def judge(leader: str, answers: Mapping[str, Answer], voters: Collection[str], quorum: int) -> Verdict:
    """Return what to propose for a transaction whose outcome none of the answering voters knows.

    Args:
        leader: the node that led it.
        answers: of at least a majority of the voters, all to the same ballot.
        voters: all of them.
        quorum: how many approvals its leader needed to commit it.
    """
    assert len(answers) >= majority(len(voters)), "a minority cannot tell"
    # J2, "a voter has accepted a decision": it may have been decided. Of several only the one of the highest ballot can
    # have been, because its proposer had asked a majority before, and found no other.
    accepted = [answer.accepted for answer in answers.values() if answer.accepted is not None]
    if accepted:
        return COMMIT if max(accepted)[1] else ABORT
    # J3, "a majority holds it": then no majority can hold a conflicting transaction, so none has been committed unseen
    # or will be; and its abort was not decided, for a voter among these would have accepted that.
    holders = {node for node, answer in answers.items() if answer.standing == Standing.HELD}
    if len(holders) >= majority(len(voters)):
        return COMMIT
    # J4, "a voter says NEVER": a conflicting commit that it has not seen was approved by a quorum; so it was not. Or
    # time is closed: a majority would have had to hold it before.
    if any(answer.standing == Standing.NEVER for answer in answers.values()):
        return ABORT
    # J5, "its leader is among them": it has no commit of it, and with its promise it has stopped to count.
    if leader in answers:
        return ABORT
    # J6, "the holders, and the voters out of reach that may have approved it, are fewer than a quorum". A voter out of
    # reach has not approved it if it leads a conflicting transaction that is still pending: it holds its own. But that
    # one is not certainly pending if a voter knows its end, or may have known and forgotten it, as safe time allows.
    # And if one leader led both, it has approved this one, however the other ended: it gave that up before it began
    # this.
    ended = frozenset[Txid]().union(*(answer.ended for answer in answers.values()))
    blockers = frozenset[Txid]().union(*(answer.blockers for answer in answers.values()))
    forgotten = max(_forgotten(answer) for answer in answers.values())
    bound = {blocker.leader for blocker in blockers - ended if blocker.clock > forgotten} - {leader}
    approvers = holders | (set(voters) - answers.keys() - bound)
    if len(approvers) < quorum:
        return ABORT
    return First(blockers)  # J7: undecidable before its blockers have ended
