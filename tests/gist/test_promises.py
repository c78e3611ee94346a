"""The promises of the gist on multi-leader Bedrock, sentence by sentence, in our words: init, step, check.

https://gist.github.com/quinthar/31d8e58aac8432426cadd2f71496d984. Each test names the heading that it is from. Where we
do otherwise, ``docs/divergence.md`` says why; the tests of such sentences say so.
"""

from itertools import combinations
from random import Random

import pytest

from bedrockish.core.state.certifier import prepare_commit
from bedrockish.core.state.commit_window import CommitWindow
from bedrockish.core.state.pending import Pending
from bedrockish.core.state.settings import approvals_needed
from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from tests.traces.grammar import Reader
from tests.traces.orders import all_orders
from tests.traces.table import Table


class Play:
    """A cluster of five nodes, with a record of all printed lines."""

    def __init__(self, *lines: str, nodes: str = "A B C D E") -> None:
        self.reader = Reader()
        self.said: list[str] = []
        self(f"cluster {nodes}", *lines)

    def __call__(self, *lines: str) -> list[str]:
        """Say some lines and return what happened."""
        told = [answer for line in lines for answer in self.reader.say(line)]
        self.said += told
        return told

    @property
    def table(self) -> Table:
        return self.reader.at

    def rows(self, node: str) -> dict[str, str]:
        return self.table.places[node].disk.live.rows


# -- Problem and Solution ----------------------------------------------------------------------------------------------


def test_any_node_leads_transactions_and_follows_those_of_others() -> None:
    """Solution: every node leads its own transactions, and follows those of the others."""
    play = Play(*(f"{node}0: BEGIN X{node} writes {node}" for node in "ABCDE"), "settle")
    for node in "ABCDE":
        assert f"{node}1: answers X{node}: committed as {node}1" in play.said
        assert play.rows(node) == {other: f"X{other}" for other in "ABCDE"}


def test_a_client_may_send_its_command_to_any_node() -> None:
    """Problem: a client need not know a special node; here all are alike."""
    for node in "ABCDE":
        play = Play(f"{node}0: BEGIN Alice writes x", "settle")
        assert f"{node}1: answers Alice: committed as {node}1" in play.said


def test_nodes_that_cannot_reach_each_other_commit_without_conflict() -> None:
    """Problem: A reaches B, B reaches C, A and C do not reach each other; both go on, and both are heard of."""
    play = Play("cut A - C", "A0: BEGIN Alice writes x", "C0: BEGIN Cecil writes y", "settle", nodes="A B C")
    assert {"A1: answers Alice: committed as A1", "C1: answers Cecil: committed as C1"} <= set(play.said)
    play("wait 1s")
    assert play.rows("A") == play.rows("B") == play.rows("C") == {"x": "Alice", "y": "Cecil"}


# -- Example 1 ---------------------------------------------------------------------------------------------------------


def test_two_other_approvals_of_five_commit_without_waiting_for_the_rest() -> None:
    """Example 1, step 4: with two approvals besides its own a leader commits, for any behaviour of the other nodes."""
    play = Play("A0: BEGIN Alice writes x", "deliver A -> C E", "deliver C -> A")
    assert play.table.places["A"].tick == 0
    play("deliver E -> A")
    assert "A1: COMMIT Alice[1, *, 0, *, 0]" in play.said


def test_answers_after_the_quorum_are_ignored() -> None:
    """Example 1, step 5: answers after the quorum have no effect."""
    play = Play("A0: BEGIN Alice writes x", "deliver A -> B C D E", "deliver C E -> A")
    assert play("deliver B D -> A") == ["nothing is said"]
    assert play.table.places["A"].tick == 1


@pytest.mark.parametrize("sick", list(combinations("BCDE", 2)), ids="".join)
def test_two_silent_nodes_of_five_do_not_delay_commits(sick: tuple[str, str]) -> None:
    """Example 1: nodes that hang or disconnect do not stop the others."""
    play = Play(*(f"hold {node}" for node in sick), "A0: BEGIN Alice writes x", "settle")
    assert "A1: answers Alice: committed as A1" in play.said


def test_node_whose_disk_hangs_does_not_delay_commits() -> None:
    """Example 1: nor does one that has trouble with its own database."""
    play = Play("slow disk B", "slow disk C", "A0: BEGIN Alice writes x", "settle")
    assert "A1: COMMIT Alice[1, *, *, 0, 0]" in play.said


def test_journals_of_all_nodes_are_equal_and_have_every_commit() -> None:
    """Example 1, step 6: each node keeps a list of every transaction that it has ever committed."""
    play = Play("A0: BEGIN Alice writes x", "settle", "B0: BEGIN Bob writes x", "settle")
    journals = [play(f"journal {node}") for node in "ABCDE"]
    assert len(journals[0]) == 2
    assert all(journal == journals[0] for journal in journals)


# -- How a vector-time journal works -----------------------------------------------------------------------------------


def test_a_new_node_may_choose_any_order_that_the_vectors_allow() -> None:
    """Journal: the butterfly goes left or right, and lands in the same place: all valid orders give the same rows."""
    play = Play(
        "A0: BEGIN Alice writes x", "B0: BEGIN Bob writes y", "settle", "C0: BEGIN Cy reads x writes x", "settle"
    )
    entries = [entry for entry, _ in play.table.places["D"].disk.live.journal]
    orders = [[f"{entry.leader}{entry.tick}" for entry in order] for order in all_orders(entries)]
    assert orders == [["A1", "B1", "C1"], ["B1", "A1", "C1"]]
    assert play.rows("D") == {"x": "Cy", "y": "Bob"}


@pytest.mark.parametrize(
    ("shelf", "orders"),
    [
        (("A1 [1, 0, 0, 0, 0]", "A2 [2, 0, 0, 0, 0]"), ["A1 A2"]),
        (("A1 [1, 0, 0, 0, 0]", "E1 [0, 0, 0, 0, 1]"), ["A1 E1", "E1 A1"]),
        (("A1 [1, 0, 0, 0, 0]", "E1 [1, 0, 0, 0, 1]"), ["A1 E1"]),
    ],
    ids=["same timeline", "unrelated", "seen"],
)
def test_entries_are_applied_in_any_order_that_their_vectors_allow(shelf: tuple[str, ...], orders: list[str]) -> None:
    """Journal: the vectors tell which transactions must be applied in order."""
    assert Play(*(f"list {entry}" for entry in shelf))("orders") == orders


def test_timeline_is_applied_without_a_gap() -> None:
    """Journal: E2 can never be applied without E1."""
    assert Play("list E2 [0, 0, 0, 0, 2]")("orders") == ["", "E2 can never be applied"]


def test_stars_in_a_vector_are_not_compared() -> None:
    """Journal: at [1, 2, 3, 4, 5] one may apply [2, 2, 3, *, *]: the stars say nothing."""
    assert Play()("may A [2, 2, 3, *, *] follow [1, 2, 3, 4, 5]") == ["yes"]


def test_a_restarted_node_catches_up() -> None:
    """Journal: a node that comes back applies the missed commits."""
    play = Play("crash E", "A0: BEGIN Alice writes x", "settle", "B0: BEGIN Bob reads x writes y", "settle")
    assert play.rows("E") == {}
    play("restart E", "wait 1s")
    assert play.rows("E") == {"x": "Alice", "y": "Bob"}


# -- Why quorum-approved, vector-timestamped commits cannot conflict ---------------------------------------------------


@pytest.mark.parametrize("voters", range(1, 10))
def test_any_two_quorums_share_a_node(voters: int) -> None:
    """Why: a quorum is over half of the cluster, so the quorums of two transactions share a node that saw both."""
    assert 2 * approvals_needed(voters) > voters


def test_node_shared_by_two_quorums_rejects_the_second_conflicting_transaction() -> None:
    """Why: A, B, C approve one and C, D, E the other; C compares them, and rejects one if they conflict."""
    play = Play("cut A B - D E", "A0: BEGIN Alice writes x", "E0: BEGIN Eve writes x", "settle")
    assert "C0: REJECT Eve FOR Alice" in play.said
    assert not [line for line in play.said if line.startswith("E1")]


@pytest.mark.parametrize("seed", range(40))
def test_two_conflicting_transactions_never_both_commit(seed: int) -> None:
    """Why: no quorum for two conflicting transactions in overlapping windows, in any order of arrival."""
    draw = Random(seed).random
    play = Play("quiet", "A0: BEGIN Andrew writes x", "B0: BEGIN Betty writes x")
    for _ in range(60):
        if not play.table.flights:
            break
        flight = play.table.flights[int(draw() * len(play.table.flights))]
        play(f"deliver {flight.sender} -> {flight.receiver} {min(flight.words)}")
    play("wait 1s", "plain")
    entries = [entry for entry, _ in play.table.places["C"].disk.live.journal]
    assert len(entries) == 2, "each client got through, one after the other"
    first, second = entries
    assert second.after.get(first.leader, 0) >= first.tick, "the second has seen the first"
    assert all(play.rows(node) == play.rows("C") for node in "ABDE")


# -- Examples 2 and 3 --------------------------------------------------------------------------------------------------


def test_two_transactions_without_conflict_both_commit() -> None:
    """Example 2: two leaders begin at the same moment and neither waits for the other."""
    play = Play("A0: BEGIN Alice writes foo", "B0: BEGIN Bob writes hello")
    play("deliver A -> B C D E", "deliver B -> A C D E BEGIN", "deliver B D -> A", "deliver A C -> B APPROVE")
    assert {"A1: COMMIT Alice[1, 0, *, 0, *]", "B1: COMMIT Bob[0, 1, 0, *, *]"} <= set(play.said)


def test_leader_may_commit_its_transactions_in_another_order_than_it_began_them() -> None:
    """Example 3: a transaction has a temporary name until its commit gives it its place."""
    play = Play("A0: BEGIN Alex writes foo", "A0: BEGIN Andre writes hello", "deliver A -> B C")
    play("deliver B C -> A Andre", "deliver B C -> A Alex")
    assert {"A1: COMMIT Andre[1, 0, 0, *, *]", "A2: COMMIT Alex[2, 0, 0, *, *]"} <= set(play.said)


def test_other_nodes_apply_a_leaders_commits_in_its_order() -> None:
    """Example 3: the order that a leader recorded is the order in which all others apply its commits."""
    play = Play("A0: BEGIN Alex writes foo", "A0: BEGIN Andre writes hello", "deliver A -> B C D", "deliver B C -> A")
    assert play("deliver A -> D Andre") == ["nothing is said"]
    assert play("deliver A -> D Alex") == ["D0: applies A1 Alex", "D0: applies A2 Andre"]


# -- Example 4 ---------------------------------------------------------------------------------------------------------


def duel() -> Play:
    """Andrew and Betty change the same row; A, C and E hear of Andrew first, B and D of Betty."""
    play = Play("A0: BEGIN Andrew reads x writes x", "B0: BEGIN Betty reads x writes x")
    play("deliver A -> C E", "deliver B -> D", "deliver B -> A C E BEGIN", "deliver A -> B D BEGIN")
    return play


def test_reject_names_the_conflicting_transaction() -> None:
    """Example 4: the reject notes which transaction it conflicts with."""
    assert {
        "A0: REJECT Betty FOR Andrew",
        "B0: REJECT Andrew FOR Betty",
        "C0: REJECT Betty FOR Andrew",
        "D0: REJECT Andrew FOR Betty",
        "E0: REJECT Betty FOR Andrew",
    } <= set(duel().said)


def test_third_approval_of_five_commits() -> None:
    """Example 4: two approvals and two rejects each; the fifth node breaks the tie."""
    play = duel()
    play("deliver C E -> A")
    assert "A1: COMMIT Andrew[1, *, 0, *, 0]" in play.said


def test_third_reject_of_five_rolls_back() -> None:
    """Example 4: with three rejects of five a leader knows that its transaction cannot commit, and rolls it back."""
    play = duel()
    assert play("deliver A C -> B REJECT") == ["nothing is said"]
    assert play("deliver E -> B REJECT") == ["B0: ROLLBACK Betty"]


def test_node_that_rejected_a_transaction_applies_its_commit() -> None:
    """Example 4: D rejected Andrew and must commit it, as the others can. (Here D need not wait for Betty's end.)"""
    play = duel()
    play("deliver C E -> A")
    assert "D0: applies A1 Andrew" in play("deliver A -> D COMMIT")


def test_rejected_transaction_runs_again_and_sees_the_winner() -> None:
    """Example 4, and the sentence on Bedrock's commands: a rejected command is simply run again."""
    play = duel()
    play("settle", "wait 1s")
    assert play("journal E")[-1] == "B1: COMMIT Betty'[1, 1, 0, *, *] after [1, 0, 0, 0, 0]"


# -- How anyway would PREPARE work? ------------------------------------------------------------------------------------


def transaction(name: str, *, reads: str = "", writes: str = "") -> Transaction:
    read, write = (frozenset(key.encode() for key in keys.split()) for keys in (reads, writes))
    return Transaction(Txid(1, name), {}, 0, 0, 0, name, "", ROWS, AccessSet(read, (), write), b"", b"")


def test_prepare_commit_finds_earlier_conflicting_commits() -> None:
    """PREPARE: the first call tests a transaction against all commits that it has not seen."""
    recent, mine = CommitWindow(), transaction("B", reads="x", writes="y")
    recent.add(("A", 1), transaction("A", writes="x"))
    found = prepare_commit(mine.access_set, {}, recent, Pending())
    assert found is not None
    assert found.other == Txid(1, "A")
    assert prepare_commit(mine.access_set, {"A": 1}, recent, Pending()) is None


def test_test_conflict_compares_two_open_transactions() -> None:
    """PREPARE: the second call asks whether one may commit after the other. (Here keys are compared, both ways.)"""

    def meets(one: Transaction, other: Transaction) -> bytes | None:
        return conflict(one.access_set, other.access_set)

    assert meets(transaction("A", writes="x"), transaction("B", reads="x")) == b"x"
    assert meets(transaction("A", reads="x"), transaction("B", writes="x")) == b"x"
    assert meets(transaction("A", reads="x"), transaction("B", reads="x")) is None
    assert meets(transaction("A", writes="x"), transaction("B", writes="y")) is None


# -- haikuginger's comment ---------------------------------------------------------------------------------------------


def test_commit_carries_the_vector_of_its_base() -> None:
    """Comment: a commit has the whole vector, so the order is known even after the loss of a node that saw both."""
    play = Play("A0: BEGIN Alice writes x", "settle", "C0: BEGIN Camilla reads x writes y", "settle")
    play("crash A", "D0: BEGIN Diana reads y writes z", "settle")
    assert [line.partition(" after ")[2] for line in play("journal E")] == [
        "[0, 0, 0, 0, 0]",
        "[1, 0, 0, 0, 0]",
        "[1, 0, 1, 0, 0]",
    ]


def test_commits_of_both_halves_survive_the_loss_of_their_shared_node() -> None:
    """Comment: the halves share only C, and C goes down when they find each other again."""
    play = Play("cut A B - D E", "A0: BEGIN Alice writes x", "E0: BEGIN Eve writes y", "settle")
    play("A1: BEGIN Anna reads x writes x", "E1: BEGIN Ella reads y writes y", "settle")
    play("crash C", "mend A B - D E", "wait 1s")
    assert {node: play.rows(node) for node in "ABDE"} == {node: {"x": "Anna", "y": "Ella"} for node in "ABDE"}
