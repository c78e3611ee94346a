"""A damaged node's conclusions from the reports of the others."""

import pytest

from bedrockish.core.protocol.health import Mode
from bedrockish.node.repair.verdict import COMMITTED, ROLLED_BACK, UNKNOWN, MemberAnswer, Ruling, judge

HAS = MemberAnswer(Mode.SERVING, COMMITTED)
HAS_AND_IS_DAMAGED = MemberAnswer(Mode.DAMAGED, COMMITTED)
LACKS = MemberAnswer(Mode.SERVING, UNKNOWN)
STUMBLED = MemberAnswer(Mode.DAMAGED, UNKNOWN)
BLOCKED = MemberAnswer(Mode.READ_ONLY, UNKNOWN, blocked=True)
GONE = MemberAnswer(Mode.SERVING, ROLLED_BACK)


@pytest.mark.parametrize(
    ("own", "words", "silent", "agrees", "ruling"),
    [
        (UNKNOWN, {"B": HAS, "C": HAS}, (), None, Ruling.ALONE),
        # it fits at another node, so this machine may be faulty
        (UNKNOWN, {"B": HAS, "C": STUMBLED}, (), True, Ruling.ALONE),
        (UNKNOWN, {"B": HAS}, ("C",), None, Ruling.ALONE),
        (UNKNOWN, {"B": HAS_AND_IS_DAMAGED, "C": STUMBLED}, (), True, Ruling.NOWHERE),
        (UNKNOWN, {"B": STUMBLED, "C": STUMBLED}, (), True, Ruling.NOWHERE),
        (UNKNOWN, {"B": STUMBLED, "C": STUMBLED}, (), False, Ruling.ALONE),
        (UNKNOWN, {"B": STUMBLED, "C": LACKS}, (), None, Ruling.WAIT),
        (UNKNOWN, {"B": STUMBLED}, ("C",), True, Ruling.WAIT),  # C may have applied and acknowledged the entry
        (ROLLED_BACK, {"B": LACKS, "C": LACKS}, (), True, Ruling.SOUND),
        (ROLLED_BACK, {"B": LACKS, "C": LACKS}, (), None, Ruling.WAIT),
        (UNKNOWN, {"B": GONE}, ("C",), True, Ruling.SOUND),
        (ROLLED_BACK, {}, (), False, Ruling.ALONE),
        (UNKNOWN, {}, (), True, Ruling.NOWHERE),
        (UNKNOWN, {}, ("B", "C"), None, Ruling.WAIT),
    ],
)
def test_verdict_on_a_misfit_entry_follows_the_other_members(
    own: str, words: dict[str, MemberAnswer], silent: tuple[str, ...], agrees: bool | None, ruling: Ruling
) -> None:
    found = judge("A7", own, words, silent, agrees, "as compared")
    assert found.ruling is ruling
    assert found.why
    for node in silent if ruling is Ruling.WAIT else ():
        assert node in found.why


@pytest.mark.parametrize(
    ("words", "ruling"),
    [
        ({"B": LACKS, "C": LACKS}, Ruling.WAIT),  # they have voted, and no member has committed it
        ({"B": STUMBLED, "C": LACKS}, Ruling.WAIT),
        ({"B": BLOCKED, "C": STUMBLED}, Ruling.NOWHERE),
        ({"B": LACKS, "C": HAS}, Ruling.ALONE),
        ({"B": LACKS, "C": GONE}, Ruling.SOUND),
    ],
)
def test_leader_does_not_count_its_own_entry_as_decided(words: dict[str, MemberAnswer], ruling: Ruling) -> None:
    assert judge("A7", UNKNOWN, words, (), True, "as compared", leads=True).ruling is ruling


@pytest.mark.parametrize(
    ("silent", "agrees", "ruling"),
    [((), True, Ruling.SOUND), (("B",), False, Ruling.ALONE), ((), None, Ruling.WAIT), (("B",), None, Ruling.WAIT)],
)
def test_verdict_on_differing_rows_follows_the_comparison(
    silent: tuple[str, ...], agrees: bool | None, ruling: Ruling
) -> None:
    assert judge("", UNKNOWN, {}, silent, agrees, "as compared").ruling is ruling
