"""What nodes remember of each other's files, and whom they turn away."""

from typing import Any

from bedrockish.acquaintances import PREFIX, STEP, Acquaintances
from bedrockish.core.records import Member, Membership

MEMBERS = Membership(0, {"B": Member("B", "h:1"), "L": Member("L", "h:2", voter=False)})


class Disk:
    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def start(self) -> Acquaintances:
        return Acquaintances(dict(self.kept), self.kept.__setitem__)


def test_the_first_file_is_remembered_over_restarts() -> None:
    """Another file of the same voter is turned away, with the way out; the right one may come again."""
    disk = Disk()
    assert disk.start().judge("B", "one", 0, MEMBERS) == ""
    known = disk.start()
    reason = known.judge("B", "two", 500, MEMBERS)
    assert "another file" in reason
    assert "member replace URL B" in reason
    assert known.refused == {"B": reason}
    assert known.judge("B", "one", 7, MEMBERS) == ""
    assert not known.refused


def test_an_older_state_of_the_same_file_is_turned_away() -> None:
    """One that was put back from a backup; as exactly as this process knows, and roughly after a restart."""
    disk = Disk()
    known = disk.start()
    known.judge("B", "one", 10, MEMBERS)
    known.learn("B", "one", 11)
    assert known.judge("B", "one", 11, MEMBERS) == ""
    assert "older state" in known.judge("B", "one", 10, MEMBERS)
    known.learn("B", "one", 10 + STEP)
    assert "older state" in disk.start().judge("B", "one", 9 + STEP, MEMBERS)


def test_an_idle_memory_writes_nothing() -> None:
    """Or two nodes would keep each other writing for ever."""
    disk = Disk()
    known = disk.start()
    known.judge("B", "one", 10, MEMBERS)
    before = dict(disk.kept)
    for batches in range(10, 10 + STEP):
        known.learn("B", "one", batches)
    assert disk.kept == before
    known.save()
    assert disk.kept != before


def test_learners_and_strangers_are_let_be() -> None:
    """A learner promises nothing, so it may come with any file; its latest one is remembered."""
    known = Disk().start()
    assert known.judge("L", "one", 9, MEMBERS) == ""
    assert known.judge("L", "two", 1, MEMBERS) == ""
    assert known.stores == {"L": "two"}
    assert known.judge("X", "one", 0, MEMBERS) == ""
    assert known.judge("B", None, None, MEMBERS) == ""


def test_what_the_membership_says_counts_more_than_memory() -> None:
    """A voter that came back as a new one, with the cluster's consent, is not held to its old file."""
    known = Disk().start()
    known.judge("B", "one", 50, MEMBERS)
    renewed = Membership(5, {"B": Member("B", "h:1", voter=True, store="two")})
    assert known.judge("B", "two", 0, renewed) == ""
    assert "another file" in known.judge("B", "one", 60, renewed)


def test_who_left_is_forgotten() -> None:
    """A name may come back with another file after that."""
    disk = Disk()
    known = disk.start()
    known.judge("B", "one", 50, MEMBERS)
    known.forget(Membership(1, {}))
    assert disk.kept == {PREFIX + "B": None}
    assert disk.start().judge("B", "two", 0, MEMBERS) == ""
