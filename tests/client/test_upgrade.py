"""``bedrockish upgrade check`` on scripted clusters; tests/cluster/test_two_releases.py has real ones."""

import re

import pytest

from bedrockish.cli.upgrade import MemberState, found_of, judge

OLD = {"version": "1.0", "level": 1, "cluster_level": 1}
NEW = {"version": "2.0", "level": 2, "cluster_level": 1}
DONE = {**NEW, "cluster_level": 2}


def one(name: str, said: dict[str, object], *, voter: bool = True, why_not: str = "") -> MemberState:
    return MemberState(name, voter, why_not=why_not, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "words", "is_fine"),
    [
        ([one("A", OLD), one("B", OLD), one("C", OLD)], "next: end A .* 3 of 3 are left", True),
        ([one("A", OLD), one("B", OLD), one("D", OLD, voter=False)], "next: end D", True),
        ([one("A", NEW), one("B", OLD), one("C", OLD)], "next: end B .*each can go back", True),
        ([one("A", NEW), one("B", OLD)], "2 voters, and all of them must agree", True),
        ([one("A", NEW), one("B", OLD, why_not="x"), one("C", OLD)], "B .*NOT WELL: x.* restart no node now", False),
        (
            [one("A", NEW), one("B", {**DONE, "version": "3.0", "level": 3})],
            "B: a newer release than this program",
            False,
        ),
        ([one("A", NEW), one("B", NEW)], "all run 2.0; the cluster changes", True),
        ([one("A", DONE), one("B", DONE)], "no way back", True),
        ([one("A", DONE), one("B", DONE, why_not="the disk")], "all run 2.0, and something is wrong", False),
    ],
)
def test_upgrade_verdict_names_each_obstacle(members: list[MemberState], words: str, is_fine: bool) -> None:
    verdict = judge(members, "2.0", 2)
    assert re.search(words, " ".join(verdict.lines))
    assert verdict.is_fine is is_fine


def test_upgrade_judges_the_health_of_nodes_of_other_releases() -> None:
    """Of an older release, only whether the node is up is known; an unfinished upgrade is not a trouble."""
    nodes = {"A": {"up": True}, "B": {"up": False}}
    assert found_of("A", "voter", {"version": "1.0", "nodes": nodes}).why_not == "it does not reach B"
    assert found_of("A", "voter", {"version": "1.0", "trouble": "no room", "nodes": nodes}).why_not == "no room"
    told = [{"code": "upgrade_unfinished", "text": "B"}, {"code": "clock_skew", "text": "its clock"}]
    assert found_of("A", "voter", {"version": "2.0", "troubles": told, "level": 2}).why_not == "its clock"
    assert found_of("A", "learner", {"troubles": told[:1]}) == MemberState("A", False, "", 0, 0)
