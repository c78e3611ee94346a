"""The verdict on damage: whether only this node's tables are wrong, or no node can apply an entry. Pure.

Two facts decide: whether other members have applied the entry that does not fit here, and whether the tables here equal
those of most members. While a node that could know more does not answer, the verdict is to wait.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from bedrockish.core.protocol.health import Mode
from bedrockish_journal.model.value import value

COMMITTED, VOID, ROLLED_BACK, UNKNOWN = "committed", "void", "rolled back", "unknown"


class Ruling(Enum):
    """The verdicts on a node that stopped because of damage."""

    ALONE = "alone"  # only this node's tables are wrong, and have to be refilled
    NOWHERE = "nowhere"  # this node's tables are right, and no node can apply the entry: an operator has to decide
    SOUND = "sound"  # this node's tables are right, and no entry stops it any more: it serves again
    WAIT = "wait"  # the facts do not decide yet


@value
class MemberAnswer:
    """A member's answer about the entry."""

    mode: Mode  # the mode of that member
    # ``committed`` if the member has applied the entry, ``void`` if an operator has had the changes skipped,
    # ``rolled back`` or ``unknown``.
    outcome: str
    blocked: bool = False  # whether the entry stops that member

    @property
    def has_it(self) -> bool:
        """Whether the member has applied the entry: its journal has the entry, and its tables are not damaged."""
        return self.outcome in (COMMITTED, VOID) and self.mode < Mode.DAMAGED


@value
class Verdict:
    """The ruling, and its reason in words."""

    ruling: Ruling
    why: str


def judge(
    entry: str,  # the name of the entry that cannot be applied here; empty if rows were found to differ
    own: str,  # the entry's outcome as this node knows it
    answers: Mapping[str, MemberAnswer],  # the answers of the other members
    silent: Collection[str],  # the other members that do not answer
    # Whether the tables here equal those of a majority of the members, or of the journal; None: unknown.
    agrees: bool | None,
    agree_why: str = "",  # the reason for ``agrees``, in words
    *,
    # Whether this node led the entry. A leader applies its entry before it sends COMMIT. So until another member
    # reports the outcome, the entry may be undecided.
    leads: bool = False,
) -> Verdict:
    """Return the verdict on this node's tables, and on the entry that it could not apply."""
    if agrees is False:
        return Verdict(Ruling.ALONE, f"the tables of this node alone are damaged: {agree_why}")
    if not entry:
        return _without_entry(silent, agrees, agree_why)
    fits = sorted(node for node, answer in answers.items() if answer.has_it)
    if fits:
        return Verdict(Ruling.ALONE, f"{entry} fits at {', '.join(fits)}: the tables of this node alone are damaged")
    if ROLLED_BACK in (own, *(answer.outcome for answer in answers.values())):
        if agrees:
            return Verdict(Ruling.SOUND, f"{entry} was rolled back everywhere, and {agree_why}")
        return Verdict(Ruling.WAIT, f"{entry} was rolled back everywhere; {_unknown(silent, agree_why)}")
    if silent:
        return Verdict(Ruling.WAIT, f"{entry} does not fit here; {_unknown(silent, agree_why)}")
    if agrees is None:
        return Verdict(Ruling.WAIT, f"{entry} does not fit here, and no node has applied it; {agree_why}")
    if leads and not any(answer.blocked for answer in answers.values()):
        return Verdict(Ruling.WAIT, f"{entry}, which was led here, does not fit, and is not decided yet")
    return Verdict(Ruling.NOWHERE, f"{entry} fits at no node, and {agree_why}")


def _without_entry(silent: Collection[str], agrees: bool | None, agree_why: str) -> Verdict:
    if agrees:
        return Verdict(Ruling.SOUND, f"nothing differs any more: {agree_why}")
    return Verdict(Ruling.WAIT, f"rows differ; {_unknown(silent, agree_why)}")


def _unknown(silent: Collection[str], agree_why: str) -> str:
    if silent:
        return f"waiting for {', '.join(sorted(silent))}, which may know more"
    return agree_why or "it is unknown which node is right"
