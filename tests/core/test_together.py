"""Commands that arrive at the same moment share a transaction, and none fails or waits long because of another."""

from collections.abc import Iterable
from dataclasses import replace

from bedrockish.api.requests import SNAPSHOT, Request, Statement, Token
from bedrockish.core.coordinator.request import Stage
from bedrockish.core.coordinator.wait_queue import SIZE_MAX
from bedrockish.core.protocol.events import Event, MovedToWorker
from bedrockish.core.protocol.messages import Begin
from bedrockish.core.protocol.records import FORGOTTEN
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import command_key
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import Transaction, Txid
from tests.core.net import Net, add
from tests.core.test_shared_transactions import journal, value

ROWS = "pqrstuvw"


def some(count: int) -> list[Request]:
    """Return commands that have nothing to do with each other."""
    return [add(f"c{number}", ROWS[number]) for number in range(count)]


def commands(net: Net) -> list[tuple[str, ...]]:
    return [one.commands for one in journal(net)]


def size(net: Net, name: str = "A") -> int:
    return net.places[name].core.coordinator.command_groups.size


def begins(net: Net) -> int:
    return sum(isinstance(message, Begin) for _, _, message in net.said)


def hold(net: Net, key: str) -> None:
    """Let a transaction of B with this key be pending at A, and never end."""
    net.ask("B", add("other", key))
    begin = [flight for flight in net.flights if isinstance(flight[2], Begin) and flight[1] == "A"]
    net.flights.clear()
    net.play("A", "receive", "B", begin[0][2])
    net.flights.clear()  # B never hears that A approves


def test_commands_share_one_round_of_votes_and_each_has_its_answer() -> None:
    net = Net("ABC")
    net.ask_together("A", *some(5))
    net.run(1.0)
    assert commands(net) == [("c0", "c1", "c2", "c3", "c4")]
    assert net.told("A") == {f"c{number}": "A1" for number in range(5)}
    assert [value(net, "C", ROWS[number]) for number in range(5)] == [1] * 5
    assert begins(net) == 2


def test_commands_that_come_one_by_one_share_no_transaction() -> None:
    net = Net("ABC")
    for request in some(3):
        net.ask("A", request)
    net.run(1.0)
    assert sorted(commands(net)) == [("c0",), ("c1",), ("c2",)]


def test_conflict_of_one_joined_command_does_not_delay_the_others() -> None:
    """A pending transaction of another leader blocks one of the commands; the others do not wait for it."""
    net = Net("ABC")
    hold(net, ROWS[1])
    net.ask_together("A", *some(3))
    net.deliver()
    assert net.told("A") == {"c0": "A1", "c2": "A2"}
    net.run(20.0)
    assert {value(net, name, ROWS[1]) for name in "ABC"} == {2}
    assert net.told("A").keys() == {"c0", "c1", "c2"}


def test_group_with_a_rejected_command_is_divided() -> None:
    """C has B's transaction before A's group, and its reject does not name the command that conflicts."""
    net = Net("ABC")
    net.ask("B", add("other", ROWS[1]))
    net.ask_together("A", *some(8))
    assert size(net) == SIZE_MAX
    net.run(5.0)
    assert size(net) == SIZE_MAX // 2
    assert sorted(commands(net)) == [("c0", "c1"), ("c2", "c3"), ("c4", "c5"), ("c6", "c7"), ("other",)]
    assert value(net, "C", ROWS[1]) == 2
    net.ask_together("A", *(add(f"d{number}", ROWS[number]) for number in range(4)))
    net.run(1.0)
    assert commands(net)[-1] == ("d0", "d1", "d2", "d3")
    assert size(net) == SIZE_MAX // 2 + 1


def test_group_with_a_blocked_command_is_divided_until_that_command_is_alone() -> None:
    """A pending transaction blocks the last of eight commands: the others need four transactions, and not seven."""
    net = Net("ABC")
    hold(net, ROWS[7])
    net.ask_together("A", *some(8))
    net.deliver()
    assert sorted(commands(net)) == [("c0", "c1"), ("c2", "c3"), ("c4", "c5"), ("c6",)]
    net.run(20.0)
    assert net.told("A").keys() == {f"c{number}" for number in range(8)}


def test_commands_go_on_alone_after_the_second_conflict_of_their_group() -> None:
    net = Net("ABC")
    hold(net, "k35")
    net.ask_together("A", *(add(f"c{number}", f"k{number}") for number in range(36)))
    net.deliver()
    assert sorted(map(len, commands(net))) == [1, 1, 1, 1, 1, 6, 6, 6, 6, 6]


def test_rejected_group_makes_no_command_pause_longer() -> None:
    net = Net("ABC")
    net.ask("B", add("other", ROWS[1]))
    net.ask_together("A", *some(8))
    net.run(0.001)
    in_flight = net.places["A"].core.coordinator.replies.in_flight.values()
    assert {one.stage for one in in_flight} == {Stage.PAUSED, Stage.WAITING}
    assert {one.rejections for one in in_flight} == {0}


def test_group_size_grows_from_one_with_each_commit() -> None:
    """A single command without a conflict raises the allowed size, too."""
    net = Net("ABC")
    net.places["A"].core.coordinator.command_groups.size = 1
    net.ask_together("A", *some(3))
    net.run(1.0)
    assert sorted(map(len, commands(net))) == [1, 1, 1]
    assert size(net) == 4


def test_conflicts_keep_groups_from_growing() -> None:
    net = Net("ABC")
    net.places["A"].core.coordinator.command_groups.size = 1
    net.ask("B", add("other", "x"))
    net.ask("A", add("one", "x"))
    net.run(5.0)
    assert value(net, "A", "x") == 2
    assert size(net) == 1


def test_commands_beyond_the_size_of_a_group_make_several_groups() -> None:
    net = Net("ABC")
    net.places["A"].core.coordinator.command_groups.size = 2
    net.ask_together("A", *some(5))
    net.run(1.0)
    assert sorted(map(len, commands(net))) == [1, 2, 2]


def test_failing_command_gets_its_own_error() -> None:
    net = Net("ABC")
    poor = Request("poor", (Statement("move", ["x", "y", 9]),))
    one, two, three, four = some(4)
    net.ask_together("A", one, two, poor, three, four)
    net.run(1.0)
    assert net.told("A")["poor"] == "did not happen"
    assert sorted(sum(commands(net), ())) == ["c0", "c1", "c2", "c3"]
    assert [value(net, "B", ROWS[number]) for number in range(4)] == [1] * 4


def test_failing_first_command_lets_the_others_share_a_transaction() -> None:
    net = Net("ABC")
    net.ask_together("A", Request("poor", (Statement("move", ["x", "y", 9]),)), *some(3))
    net.run(1.0)
    assert net.told("A")["poor"] == "did not happen"
    assert commands(net) == [("c0", "c1", "c2")]


def test_command_too_old_to_be_looked_up_does_not_delay_its_group() -> None:
    """The command's id is older than the journal's reach; the other commands are led at once."""
    for where in range(3):
        _among_others(where)


def _among_others(where: int) -> None:
    net = Net("ABC")
    old = "0" * 32
    state = net.places["A"].core.state
    happened = state.happened

    def forgets(commands: Iterable[str], own: Txid | None = None) -> Conflict | None:
        return Conflict(FORGOTTEN, command_key(old)) if old in commands else happened(commands, own)

    state.happened = forgets  # type: ignore[method-assign]
    requests = some(2)
    requests.insert(where, add(old, "z"))
    net.ask_together("A", *requests)
    net.deliver()
    assert net.told("A").keys() == {"c0", "c1", old}
    assert net.told("A")[old] != "A1"


def test_command_submitted_twice_at_once_happens_once() -> None:
    net = Net("ABC")
    net.ask_together("A", add("twice", "x"), add("twice", "x"), add("once", "y"))
    net.run(1.0)
    assert (value(net, "B", "x"), value(net, "B", "y")) == (1, 1)
    assert set(net.told("A")) == {"twice", "once"}


def test_commands_of_other_isolation_get_another_transaction() -> None:
    net = Net("ABC")
    one, two, three = some(3)
    net.ask_together("A", one, replace(two, isolation=SNAPSHOT), three)
    net.run(1.0)
    assert set(commands(net)) == {("c0", "c2"), ("c1",)}


def test_command_whose_session_has_seen_more_waits_alone() -> None:
    net = Net("ABC")
    one, two, three = some(3)
    net.cut("A", "B")
    net.cut("B", "C")
    net.ask_together("A", replace(one, token=Token({"B": 1}, 1), timeout_s=0.5), two, three)
    net.deliver()
    assert net.told("A") == {"c1": "A1", "c2": "A1"}
    net.run(3.0)
    assert net.told("A")["c0"] == "did not happen"


def test_command_in_a_worker_does_not_delay_its_group() -> None:
    """The driver finds that the first command takes long; the others that came with it go on."""
    net = Net("ABC")
    place = net.places["A"]
    execute, slow = place._execute, list[int]()

    def run(request_id: int, group: tuple[int, ...]) -> Event:
        if group and not slow:
            slow.append(request_id)
            return MovedToWorker(request_id)
        return execute(request_id, group)

    place._execute = run  # type: ignore[method-assign]
    net.ask_together("A", *some(3))
    net.run(1.0)
    assert slow
    assert commands(net) == [("c1", "c2")]


def test_client_whose_time_is_over_does_not_fail_its_group() -> None:
    net = Net("ABC")
    net.cut("A", "B")
    net.cut("A", "C")
    one, two, three = some(3)
    net.ask_together("A", replace(one, timeout_s=0.3), two, replace(three, timeout_s=0.3))
    net.run(3.0)
    assert "c1" not in net.told("A")
    net.mend("A", "B")
    net.mend("A", "C")
    net.run(5.0)
    assert net.told("A")["c1"] in {"A1", "A2", "A3"}
    assert value(net, "B", ROWS[1]) == 1


def test_learner_refuses_a_group_of_writes() -> None:
    """Each client gets the voters' addresses."""
    net = Net("AB", learners="L")
    net.ask_together("L", *some(3))
    net.run(1.0)
    assert set(net.told("L").values()) == {"did not happen"}


def test_author_of_each_change_is_in_the_transaction() -> None:
    """The transaction has the shares that the driver reported, but only if commands have joined."""
    shared = Transaction(
        *(Txid(5, "A"), {}, 0, 0, 0, "one", "serializable", "rows", AccessSet(), b"", b""),
        joined=(("two", b""),),
        shares=(2, 1),
    )
    assert shared.makers(3) == ("one", "one", "two")
    assert shared.makers(4) == (None,) * 4
