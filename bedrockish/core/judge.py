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
    """What one voter said of a transaction, when it promised to accept no lower ballot.

    Attributes:
        standing: whether it holds the transaction (``Standing``).
        accepted: the highest (ballot, commit?) that it has accepted, or None.
        blockers: the conflicting transactions that are pending there.
        ended: conflicting transactions that cannot commit any more, or have, as far as it knows: it knows their outcome
            or has accepted their abort.
        safe: the clock up to which all have ended, and it remembers none.
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
    """It may have been committed, or not: these have to end before anybody can tell. Then ask again."""

    blockers: frozenset[Txid]


COMMIT, ABORT = Commit(), Abort()
Verdict = Commit | Abort | First


def _forgotten(answer: Answer) -> int:
    """Return the clock up to which a voter may have forgotten how transactions ended."""
    # A voter ends what is pending there when its safe time passes it. So a voter of an older release as well,
    # which does not tell its safe time, remembers the end of anything later than what is pending there.
    return min([answer.safe, *(blocker.clock - 1 for blocker in answer.blockers)])


def judge(leader: str, answers: Mapping[str, Answer], voters: Collection[str], quorum: int) -> Verdict:
    """Return what to propose for a transaction of which nobody who answered knows the outcome.

    Args:
        leader: who led it.
        answers: of at least a majority of the voters, all to the same ballot.
        voters: all of them.
        quorum: how many approvals its leader needed to commit it.
    """
    assert len(answers) >= majority(len(voters)), "a minority cannot tell"
    # J2, "somebody has accepted a decision": it may have been decided. Of several only the one of the highest ballot
    # can have been, because whoever proposed that one had asked a majority before, and found no other.
    accepted = [answer.accepted for answer in answers.values() if answer.accepted is not None]
    if accepted:
        return COMMIT if max(accepted)[1] else ABORT
    # J3, "a majority holds it": then nothing that conflicts with it can be held by a majority, so none has been
    # committed unseen or will be; and nobody has decided to abort it, for somebody here would have accepted that.
    holders = {node for node, answer in answers.items() if answer.standing == Standing.HELD}
    if len(holders) >= majority(len(voters)):
        return COMMIT
    # J4, "somebody says NEVER": a conflicting commit that it has not seen was approved by a quorum; so it was not.
    # Or time is closed: a majority would have had to hold it before.
    if any(answer.standing == Standing.NEVER for answer in answers.values()):
        return ABORT
    # J5, "its leader is among them": it has no commit of it, and with its promise it has stopped to count.
    if leader in answers:
        return ABORT
    # J6, "those who hold it, and those out of reach who may have approved it, are no quorum". A voter out of reach has
    # not approved it if it leads what conflicts with it and is pending still: it holds its own. But nobody knows that
    # it is pending still as soon as somebody knows its end, or may have known and forgotten it, as safe time lets him.
    # And the leader of both has approved this one, whatever became of the other: it gave that up before it began this.
    ended = frozenset[Txid]().union(*(answer.ended for answer in answers.values()))
    blockers = frozenset[Txid]().union(*(answer.blockers for answer in answers.values()))
    forgotten = max(_forgotten(answer) for answer in answers.values())
    bound = {blocker.leader for blocker in blockers - ended if blocker.clock > forgotten} - {leader}
    approvers = holders | (set(voters) - answers.keys() - bound)
    if len(approvers) < quorum:
        return ABORT
    return First(blockers)  # J7: nobody can tell before what blocks it has ended
