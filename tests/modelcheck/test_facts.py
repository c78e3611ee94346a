"""Facts that two nodes can both hold where commands share a transaction."""

from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from tools.modelcheck.facts import Facts, broken_law
from tools.modelcheck.frozen import number_of

WRITES = AccessSet(write_points=frozenset({b"x"}))


def facts(node: str, *commits: tuple[str, ...], told: tuple[tuple[str, str], ...] = ()) -> Facts:
    journal = []
    for tick, (command, *joined) in enumerate(commits, 1):
        txid, base = Txid(10 * tick + ord(node), node), {node: tick - 1} if tick > 1 else {}
        others = tuple((one, b"") for one in joined)
        made = Transaction(txid, base, 0, 0, 0, command, "serializable", ROWS, WRITES, b"", b"", joined=others)
        journal.append((node, tick, bytes([tick]), number_of(made)))
    return Facts(node, tuple(journal), frozenset(), told, 0)


def test_joined_command_happens_once() -> None:
    one = facts("A", ("p", "q"), ("r",))
    assert broken_law(one, one) is None
    for others in (("q",), ("s", "q"), ("s", "p")):
        twice = facts("A", ("p", "q"), others)
        found = broken_law(twice, twice)
        assert found is not None
        assert found[0] == "a command happens once"


def test_joined_command_gets_the_place_of_its_transaction() -> None:
    truly = facts("A", ("p", "q"), told=(("p", "A1"), ("q", "A1")))
    assert broken_law(truly, truly) is None
    for lie in (("r", "A1"), ("q", "A2")):
        liar = facts("A", ("p", "q"), ("s",), told=(lie,))
        found = broken_law(liar, liar)
        assert found is not None
        assert found[0] == "no acknowledged commit is lost"
