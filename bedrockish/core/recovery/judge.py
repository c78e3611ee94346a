"""The proposal of a recovery, from the answers of at least a majority (docs/protocol.md, "When a leader dies").

This module is a function without state or messages. ``tests/core/test_judge.py`` compares it with every possible
history in clusters of up to five voters.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bedrockish.core.protocol.messages import Standing
from bedrockish.core.state.settings import majority
from bedrockish_journal.model.transaction import Txid


@dataclass(frozen=True, slots=True)
class VoterAnswer:
    """The answer of one voter about a transaction, given with its promise to accept no lower ballot."""

    standing: int  # whether the voter holds the transaction (``Standing``)
    accepted: tuple[int, bool] | None = None  # the highest (ballot, commit?) that the voter has accepted, or None
    blockers: frozenset[Txid] = frozenset()  # the conflicting transactions that are pending at the voter
    # The conflicting transactions whose outcome the voter knows, or whose abort it has accepted.
    ended: frozenset[Txid] = frozenset()
    # The voter's safe time; all transactions up to it have ended, and the voter may have forgotten their outcomes.
    safe: int = 0


@dataclass(frozen=True, slots=True)
class ProposeCommit:
    """The verdict to propose commit."""


@dataclass(frozen=True, slots=True)
class ProposeAbort:
    """The verdict to propose abort."""


@dataclass(frozen=True, slots=True)
class EndFirst:
    """No verdict yet: the transaction may have been committed. The blockers have to end before the next round."""

    blockers: frozenset[Txid]


COMMIT, ABORT = ProposeCommit(), ProposeAbort()
Verdict = ProposeCommit | ProposeAbort | EndFirst


def _forgotten(answer: VoterAnswer) -> int:
    """Return the clock up to which a voter may have forgotten the outcomes of transactions."""
    # A voter's safe time was below the clock of each of its blockers: otherwise the blocker would have ended there.
    return min([answer.safe, *(blocker.clock - 1 for blocker in answer.blockers)])


def judge(leader: str, answers: Mapping[str, VoterAnswer], voters: Collection[str], quorum: int) -> Verdict:
    """Return the proposal for a transaction whose outcome none of the answering voters knows.

    Args:
        answers: the answers of at least a majority of the voters, all to the same ballot.
        quorum: how many approvals its leader needed to commit it.
    """
    assert len(answers) >= majority(len(voters)), "a minority cannot tell"
    # J2, "a voter has accepted a decision": that decision may be final. Of several, only the one at the highest ballot
    # can be: its proposer had asked a majority, and had found no other decision.
    accepted = [answer.accepted for answer in answers.values() if answer.accepted is not None]
    if accepted:
        return COMMIT if max(accepted)[1] else ABORT
    # J3, "a majority holds it": no majority can hold a conflicting transaction, so none was or will be committed. Nor
    # was the abort decided: one of these voters would have accepted it.
    holders = {node for node, answer in answers.items() if answer.standing == Standing.HELD}
    if len(holders) >= majority(len(voters)):
        return COMMIT
    # J4, "a voter says NEVER": a quorum approved a conflicting commit outside the transaction's base, so no quorum
    # approved the transaction. Or time is closed, and no quorum had approved the transaction before.
    if any(answer.standing == Standing.NEVER for answer in answers.values()):
        return ABORT
    # J5, "its leader is among them": the leader has not committed it, and counts no approvals since its promise.
    if leader in answers:
        return ABORT
    # J6, "the holders, and the voters out of reach that may have approved it, are fewer than a quorum". A voter out of
    # reach has not approved it if that voter leads a conflicting transaction that is still pending: it holds its own
    # transaction, and no voter holds two that conflict. Its vote for its own transaction is durable: a BEGIN may leave
    # before that vote only in a cluster so small that all voters but the leader are among the answers here
    # (``may_count_out``). The conflicting transaction is not certainly pending if a voter knows its end, or may have
    # forgotten its end (``safe``). If one leader led both, it gave the conflicting one up before it began this one, so
    # it has approved this one.
    ended = frozenset[Txid]().union(*(answer.ended for answer in answers.values()))
    blockers = frozenset[Txid]().union(*(answer.blockers for answer in answers.values()))
    forgotten = max(_forgotten(answer) for answer in answers.values())
    bound = {blocker.leader for blocker in blockers - ended if blocker.clock > forgotten} - {leader}
    approvers = holders | (set(voters) - answers.keys() - bound)
    if len(approvers) < quorum:
        return ABORT
    return EndFirst(blockers)  # J7: undecidable until its blockers have ended
