"""A recovery asks a voter about a rival of the recovered transaction, and the voter may have forgotten how the rival
ended. Then the rival's leader may have given the rival up and approved the recovered transaction.

Safe time lets a node forget. It depends only on a majority, so other voters may still hold the transactions.
"""

from bedrockish.core.protocol.messages import Commit
from bedrockish_journal.model.transaction import Txid
from tests.core.net import Net, add
from tests.core.test_ballots import begin, state


def forgotten() -> tuple[Net, Txid]:
    """Return a cluster in which D alone of the reachable voters has approved P, whose leader A has told a client so.

    B had led Q, which conflicts with P, and gave it up: A and D accepted that. C and E hold Q, and know of no end.
    """
    net = Net("ABCDE")
    q = begin(net, "B", "Q", approvers="CE")
    for one in "ABD":
        for other in "CE":
            net.cut(one, other)
    net.play("B", "give up", q)
    net.run(1.7)  # the time of A, B and D is safe beyond Q, which they forget
    assert state(net, "D").clock.safe >= q.clock
    assert all(q in state(net, node).votes.pending for node in "CE")
    net.ask("A", add("P", "x"))
    net.kept = {Commit}
    net.deliver()
    assert net.told("A") == {"P": "A1"}
    for one in "AB":
        for other in "CDE":
            net.cut(one, other)
    net.kept = set()
    net.mend("D", "C")
    net.mend("D", "E")
    (p,) = state(net, "D").votes.pending.transactions
    return net, p


def test_voter_that_may_have_forgotten_an_end_counts_no_voter_out() -> None:
    """B had forgotten Q, too, and approved P. So A, B and D committed P, and A's client has the answer."""
    net, p = forgotten()
    net.play("D", "suspect", p)
    net.run(5.0)
    assert [state(net, node).timelines.applied.get("D") for node in "CDE"] == [1, 1, 1]  # P, adopted from A
    assert net.told("A") == {"P": "A1"}
