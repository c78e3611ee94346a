"""All possible runs of a few very small clusters, and tests of the search itself."""

from collections import defaultdict

import pytest

from tests.core.net import Net
from tools.faulty import FAULTS
from tools.modelcheck.__main__ import main
from tools.modelcheck.explore import Explorer, ScriptError
from tools.modelcheck.facts import Facts
from tools.modelcheck.frozen import freeze, key_of, thaw
from tools.modelcheck.guided import ALL
from tools.modelcheck.nodes import Nodes
from tools.modelcheck.place import Place
from tools.modelcheck.scopes import ALONE, MEET, Limits, Scope, at
from tools.modelcheck.way import search
from tools.mutations import Hunter

NO_END = 1e6  # seconds: these scopes are small, and a busy machine may take its time
SMALL = {
    "two that meet": Scope("", 3, MEET, Limits(), endings=20),
    "one, recovered": Scope("", 3, ALONE, Limits(suspicions=1), endings=10),
    "one, and its leader dies": Scope(
        "", 3, ALONE, Limits(suspicions=1, deaths=1), where=at(suspicions="B", deaths="A"), endings=20
    ),
    "one, and a restart": Scope("", 3, ALONE, Limits(restarts=1), endings=10),
    "one given up": Scope("", 3, ALONE, Limits(rollbacks=1, retries=1), endings=10),
    "two orphans at five": Scope("", 5, MEET, Limits(), dead="AB", endings=60),
    "two orphans at seven": Scope("", 7, MEET, Limits(), dead="ABC", endings=40),
}


def finals(explorer: Explorer) -> set[tuple[object, ...]]:
    """Return the decided facts of each final state."""
    nodes, n = explorer.nodes, explorer.scope.voters
    return {tuple(nodes.facts.values[nodes.known[place].facts] for place in state[:n]) for state in explorer.finals}


@pytest.mark.parametrize("name", SMALL)
def test_no_law_breaks_in_any_history(name: str) -> None:
    """All states are searched, and some get a fair ending."""
    scope = SMALL[name]
    report, way = search(scope, NO_END)
    assert not report.law, (report.story, way)
    assert report.exhausted
    assert report.states > 100
    assert report.ended == scope.endings


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_no_law_breaks_in_the_published_scopes(name: str) -> None:
    """The search stops after some minutes at most."""
    report, way = search(ALL[name], 240)
    assert not report.law, (report.story, way)


def test_no_law_breaks_with_a_body_sent_ahead_in_pieces() -> None:
    """This scope, whose states are all searched, has the body offered, fetched, and only then begun."""
    scope = ALL["ahead-3"]
    net = Net("ABC", settings=scope.settings)
    net.ask("A", scope.script("A")[0])
    net.deliver()
    kinds = net.kinds("A")
    assert kinds.index("Offer") < kinds.index("Piece") < kinds.index("InPieces")
    assert net.told("A") == {"P": "A1"}
    report, way = search(scope, NO_END)
    assert not report.law, (report.story, way)
    assert report.exhausted


@pytest.mark.parametrize("name", ["one, recovered", "one, and its leader dies", "one given up"])
def test_reduced_search_reaches_the_same_end_states(name: str) -> None:
    """With all orders in which nodes can take turns the search is longer, and ends in the same states."""
    short, whole = Explorer(SMALL[name]), Explorer(SMALL[name], reduced=False)
    assert short.search(NO_END).states < whole.search(NO_END).states
    assert finals(short) == finals(whole)


def test_model_with_delayed_durability_reaches_the_same_ends() -> None:
    """If each sync is an event of its own, and restarts lose earlier writes, there is one more end: the request was
    lost before any other node heard of it.
    """
    at_once = Scope("", 2, ALONE, Limits(restarts=1), endings=0)
    soon = at_once.with_(eager=False)
    one, other = Explorer(at_once), Explorer(soon)
    assert one.search(NO_END).exhausted
    assert other.search(NO_END).exhausted
    forgotten = tuple(Facts(name, (), frozenset(), (), 0) for name in "AB")
    assert finals(other) == {*finals(one), forgotten}


class Watched(Nodes):
    """Keeps a second copy of states that two ways reach."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.copies: dict[int, list[bytes]] = defaultdict(list)

    def number(self, place: Place) -> int:
        before = len(self.known)
        found = super().number(place)
        if found < before and len(self.copies[found]) < 3:
            self.copies[found].append(freeze(place))
        return found


@pytest.mark.parametrize(
    "name", [pytest.param("two that meet", marks=pytest.mark.slow), "one, recovered", "one given up"]
)
def test_states_with_equal_keys_behave_alike(name: str) -> None:
    """Nodes that reach one state in different ways behave alike from there on."""
    explorer = Explorer(SMALL[name])
    nodes = explorer.nodes = Watched(SMALL[name])
    explorer.meets = [nodes.event(("meet", one)) for one in SMALL[name].names]
    explorer.reboot, explorer.death = nodes.event(("reboot", 0)), nodes.event(("die", 0))
    explorer.search(NO_END)
    compared = 0
    for number, copies in list(nodes.copies.items()):
        known = nodes.known[number]
        for event, expected in list(known.after.items()):
            for data in copies:
                nodes.known[number].data, nodes.known[number].after = data, {}
                assert nodes.play(number, event) == expected
                compared += 1
    assert compared > 20


def test_thawed_node_equals_the_frozen_one_and_shares_no_state() -> None:
    """A thawed node has the same key, and changes of it affect no other node."""
    explorer = Explorer(SMALL["two that meet"])
    state = explorer.begin()
    place = thaw(explorer.nodes.known[state[0]].data)
    twin = thaw(freeze(place))
    assert key_of(place) == key_of(twin)
    twin.play(("submit",))
    assert key_of(place) != key_of(twin)
    assert not place.disk.durable.votes
    assert twin.disk.durable.votes


@pytest.mark.parametrize(
    ("fault", "scope", "law"),
    [
        ("quorum less one", "meet-3", "no concurrent conflicting commits"),
        ("no test of its own", "meet-3", "no concurrent conflicting commits"),
        ("after ignored", "meet-3", "no node stops"),
        ("plain majority at 7", "orphans-7", "everything ends while some are gone"),
        ("reply before durable", "sync-3", "no acknowledged commit is lost"),
        ("exclusion ignores what is known", "known-end-5", "one outcome"),
        ("leader counts after its promise", "promised-5", "no node stops"),
        ("votes after its promise", "late-vote-5", "one outcome"),
        ("promises below its promise", "two-ballots-5", "one outcome"),
        ("cut is volatile", "cut-3", "nothing appears below safe"),
        ("acceptances are volatile", "restarted-acceptor-3", "one outcome"),
        ("the lowest accepted ballot wins", "restarted-acceptor-3", "one outcome"),
        ("accepted rollbacks are volatile", "partial-rollback-3", "one outcome"),
        ("waiting goes on after a rollback", "released-3", "everything ends"),
    ],
)
def test_removed_rule_breaks_a_law(fault: str, scope: str, law: str) -> None:
    """The report has the shortest way to the broken law, event by event."""
    found = Hunter(NO_END, 0).in_scope(FAULTS[fault], scope)
    assert found.law == law
    assert found.way


@pytest.mark.slow
@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.scope])
def test_fault_is_detected_in_its_scope(fault: str) -> None:
    assert Hunter(600, 0).hunt(fault).law


@pytest.mark.parametrize(
    "name",
    [
        *("known-end-5", "promised-5", "late-vote-5", "two-ballots-5", "cut-3"),
        *("restarted-acceptor-3", "partial-rollback-3", "released-3"),
    ],
)
def test_guided_scope_breaks_no_law_with_all_rules(name: str) -> None:
    """All continuations of its prefix are explored."""
    report, way = search(ALL[name], NO_END)
    assert not report.law, (report.story, way)
    assert report.exhausted


def test_guided_scope_starts_in_the_state_after_its_prefix() -> None:
    """The submitted, given-up and suspected transactions of the prefix have happened, a broken link is new, and the
    dead are dead.
    """
    scope = Scope("", 3, ALONE, Limits(), prefix=("A submits", "B hears A", "A gives up P", "A tries again"))
    explorer = Explorer(scope)
    explorer.search(NO_END)
    place = thaw(explorer.nodes.known[explorer.form.unpack(explorer.order[0])[0]].data)
    assert place.taken == 1
    assert len(place.core.coordinator.rollbacks.rolling) == 1
    assert len(place.core.coordinator.attempts.open) == 2
    dead = Explorer(scope.with_(prefix=("A submits", "B hears A", "B suspects P", "A meets C", "A dies")))
    dead.search(NO_END)
    first = dead.form.unpack(dead.order[0])
    assert [dead.nodes.known[place].alive for place in first[:3]] == [False, True, True]
    assert thaw(dead.nodes.known[first[1]].data).core.recovery.rounds


def test_explorer_delivers_nothing_on_a_held_link_before_the_end() -> None:
    """Without a vote the transaction does not commit; at the end the held messages arrive, and it does."""
    explorer = Explorer(Scope("", 2, ALONE, Limits(), held=("AB",), endings=100))
    report = explorer.search(NO_END)
    assert report.exhausted
    assert not any(facts.journal for facts in explorer.nodes.facts.values)
    assert report.ended == report.states


@pytest.mark.parametrize("words", ["A hears B", "A gives up P", "B tries again", "A sings"])
def test_impossible_prefix_raises_an_error(words: str) -> None:
    """A script fails at a step that is not possible."""
    with pytest.raises(ScriptError):
        Explorer(Scope("", 2, ALONE, Limits(), prefix=(words,))).search(NO_END)


def test_law_broken_in_the_prefix_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported way is the script up to that step."""
    prefix = ("A submits", "B submits", "C hears A", "C hears B", "A hears C", "B hears C", "C hears A")
    monkeypatch.setitem(ALL, "small", Scope("", 3, MEET, Limits(), prefix=prefix))
    found = Hunter(NO_END, 0).in_scope(FAULTS["no test 4"], "small")
    assert found.law
    assert found.way == prefix[: len(found.way)]


def test_modelcheck_command_lists_and_searches_scopes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "orphans-7" in capsys.readouterr().out
    assert main(["chain-3", "--seconds", "1000"]) == 0
    assert "| all |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["no-such-scope"])
    assert "there is meet-3" in capsys.readouterr().err
