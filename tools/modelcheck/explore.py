"""A breadth-first search through all states of a scope.

A state is a number for each node, a number for each link, and how much of each limit is left. The numbers stand for the
contents of nodes and links, and equal contents have equal numbers. The laws are checked whenever the durable facts of a
node have changed.

A fault that needs twenty events in one order is too deep for a search that begins with an empty cluster. So some scopes
begin with a script, the prefix, up to a critical state. Each step of the script must be possible, with or without a
deliberate fault; else ScriptError is raised.
"""

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from bedrockish.core.protocol.messages import decode
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import Txid
from tools.modelcheck.ending import Ending
from tools.modelcheck.frozen import thaw
from tools.modelcheck.nodes import Nodes
from tools.modelcheck.place import Sent, new_place
from tools.modelcheck.scopes import LIMITS, Scope
from tools.sim.world import LawBrokenError

SUBJECTS = len(LIMITS)
EVENTS = {"submits": "submit", "reports": "heartbeat", "syncs": "sync"}  # verb of a prefix -> event of one node
State = tuple[int, ...]


@dataclass
class Report:
    # ``states``, ``transitions`` and ``depth``: how much was searched.
    states: int = 0
    transitions: int = 0
    depth: int = 0
    local: int = 0  # the number of states of single nodes
    seconds: float = 0.0
    exhausted: bool = False  # whether all states within the limits were searched
    final: int = 0  # the number of states without a possible step; ``ended``: the number of fair endings that were run
    ended: int = 0
    # ``law`` and ``story``: the broken law, and how it broke.
    law: str = ""
    story: str = ""


class Explorer:
    """The search of one scope.

    Why so large: The tables of a scope are computed once, because the search visits millions of states.
    """

    def __init__(self, scope: Scope, *, reduced: bool = True) -> None:
        self.scope, self.nodes = scope, Nodes(scope)
        self.n = scope.voters
        self.first = self.n + self.n * self.n  # a state's index of the first limit; link i -> j is at n + i * n + j
        self.at = {limit: self.first + index for index, limit in enumerate(LIMITS)}
        self.form = Struct(f"<{self.first}I{SUBJECTS}B")
        self.report = Report()
        self.parents = array("q")
        self.meets = [self.nodes.event(("meet", name)) for name in scope.names]
        self.reboot = self.nodes.event(("reboot", 0))
        self.death = self.nodes.event(("die", 0))
        self.reduced = reduced and scope.ordered
        pairs = [(i, j) for i in range(self.n) for j in range(self.n) if scope.is_cut(scope.names[i], scope.names[j])]
        self.cut = {self.n + i * self.n + j for i, j in pairs}
        index = self.nodes.index
        self.held = {self.n + index[pair[0]] * self.n + index[pair[1]] for pair in scope.held}
        self.may_die = [scope.allows("deaths", name) for name in scope.names]
        self.finals: list[State] = []
        self.begun: list[str] = []  # the steps of the prefix so far; the last of them may have broken a law
        self.at_fault, self.ending_began = 0, False
        self.receives: dict[tuple[int, int], int] = {}

    # -- the beginning ---------------------------------------------------------------------------------------------

    def begin(self) -> State:
        """Return the state in which all links are up and no other event has happened."""
        scope, nodes = self.scope, self.nodes
        membership = Membership(0, {name: Member(name, "") for name in scope.names})
        places = {
            name: new_place(name, membership, scope.settings, scope.script(name), eager=True) for name in scope.names
        }
        for place in places.values():
            place.start()
        under_way: list[tuple[str, Sent]] = []
        for name in places:
            under_way += [(name, sent) for other in self._linked(name) for sent in places[name].play(("meet", other))]
        while under_way:
            sender, (receiver, message) = under_way.pop(0)
            sent = places[receiver].play(("receive", sender, message))
            under_way += [(receiver, one) for one in sent]
        links = [0] * self.n**2
        for name, place in places.items():
            place.eager = scope.eager and name not in scope.lazy
            place.together = name in scope.together
            if name in scope.dead:
                for receiver, message in [one for _ in place.script for one in place.play(("submit",))]:
                    if receiver not in scope.dead and receiver in self._linked(name):
                        link = self.nodes.index[name] * self.n + self.nodes.index[receiver]
                        links[link] = self.nodes.push(links[link], self.nodes.message(message))
                place.play(("die", 0))
        limits = [getattr(scope.limits, limit) for limit in LIMITS]
        return (*(nodes.number(place) for place in places.values()), *links, *limits)

    def _linked(self, name: str) -> list[str]:
        return [other for other in self.scope.names if other != name and not self.scope.is_cut(name, other)]

    # -- one step --------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the possible steps, as numbers: (node, event, link, rest of the queue on that link, limit).

        The link and the limit are 0 if the step uses none.
        """
        for node in range(self.n):
            if self.nodes.known[state[node]].alive:
                yield from self.steps_of(state, node)

    def steps_of(self, state: State, node: int) -> Iterator[tuple[int, int, int, int, int]]:
        n = self.n
        for link in range(n + node, self.first, n):
            if state[link] and link not in self.held:
                yield from self._arrivals(node, link, state[link])
        for choice in self.nodes.choices(state[node]):
            if not choice.limit or state[choice.limit]:
                yield node, choice.event, 0, 0, choice.limit

    def _arrivals(self, node: int, link: int, queue: int) -> Iterator[tuple[int, int, int, int, int]]:
        nodes = self.nodes
        content = nodes.queues.values[queue]
        sender = (link - self.n) // self.n
        for position in range(1 if self.scope.ordered else len(content)):
            yield node, self.receive(sender, content[position]), link, nodes.rest(queue, position), 0

    def receive(self, sender: int, message: int) -> int:
        event = self.receives.get((sender, message))
        if event is None:
            event = self.receives[sender, message] = self.nodes.event(("receive", self.scope.names[sender], message))
        return event

    def take(self, state: State, step: tuple[int, int, int, int, int]) -> list[int]:
        node, event, link, rest, limit = step
        after = list(state)
        if link:
            after[link] = rest
        if limit:
            after[limit] -= 1
        self._play(after, node, event)
        return after

    def _play(self, state: list[int], node: int, event: int) -> None:
        nodes, n = self.nodes, self.n
        place, sends = nodes.play(state[node], event)
        state[node] = place
        for receiver, message in sends:
            link = n + node * n + receiver
            if nodes.known[state[receiver]].alive and link not in self.cut:
                state[link] = nodes.push(state[link], message)

    def strikes(self, state: State) -> Iterator[tuple[str, list[int]]]:
        """Yield the possible faults of nodes and links: (words, the state after the fault)."""
        scope, known = self.scope, self.nodes.known
        for node, name in enumerate(scope.names):
            if not known[state[node]].alive:
                continue
            for limit, act in (("deaths", self.die), ("restarts", self.restart)):
                if state[self.at[limit]] and scope.allows(limit, name):
                    after = list(state)
                    after[self.at[limit]] -= 1
                    act(after, node)
                    yield f"{limit} {name}", after
            if state[self.at["resets"]]:
                for other in range(node):
                    if known[state[other]].alive and self.n + node * self.n + other not in self.cut:
                        after = list(state)
                        after[self.at["resets"]] -= 1
                        self.meet(after, node, other)
                        yield f"resets {scope.names[other]} {name}", after

    def die(self, state: list[int], node: int) -> None:
        state[node], _ = self.nodes.play(state[node], self.death)
        for sender in range(self.n):
            state[self.n + sender * self.n + node] = 0

    def restart(self, state: list[int], node: int) -> None:
        """Crash a node and start it at once. Events in between concern other nodes, and can as well come first."""
        state[node], _ = self.nodes.play(state[node], self.reboot)
        for other in range(self.n):
            if other != node and self.n + node * self.n + other not in self.cut:
                if self.nodes.known[state[other]].alive:
                    self.meet(state, node, other)
                else:
                    state[self.n + other * self.n + node] = 0

    def meet(self, state: list[int], one: int, other: int) -> None:
        """Break a link, lose its messages, and open it again."""
        state[self.n + one * self.n + other] = state[self.n + other * self.n + one] = 0
        self._play(state, one, self.meets[other])
        self._play(state, other, self.meets[one])

    # -- the search ------------------------------------------------------------------------------------------------

    def search(self, seconds: float) -> Report:
        """Search all states, or as many as the time allows, run the fair endings, and return the report."""
        began, report = time.process_time(), self.report
        try:
            self._search(began + seconds)
            self._end(began + 2 * seconds)
        except LawBrokenError as broken:
            report.law, report.story = broken.law, broken.story
        report.seconds = time.process_time() - began
        report.local = len(self.nodes.known)
        return report

    def _search(self, until: float) -> None:
        scope, report, pack, unpack = self.scope, self.report, self.form.pack, self.form.unpack
        first = self.begin()
        for words in scope.prefix:
            self.begun.append(words)
            first = follow(self, first, words)
        self.order = [pack(*first)]
        visited = set(self.order)
        self.parents.append(-1)
        done = 0
        while done < len(self.order):
            if report.depth == scope.depth or len(self.order) > scope.states:
                return
            report.depth += 1
            for done in range(done, len(self.order)):  # noqa: B020  continues where the last level ended
                if done & 1023 == 0 and time.process_time() > until:
                    return
                self.at_fault, state = done, unpack(self.order[done])
                for after in self._following(state):
                    report.transitions += 1
                    key = pack(*after)
                    if key in visited:
                        continue
                    visited.add(key)
                    self.order.append(key)
                    self.parents.append(done)
                    self.check(state, after)
                report.states = len(self.order)
            done += 1
        report.exhausted = True

    def _following(self, state: State) -> Iterator[list[int]]:
        alone = self._alone(state) if self.reduced else None
        some = False
        for step in self.steps(state) if alone is None else alone:
            some = True
            yield self.take(state, step)
        if not some:
            self.report.final += 1
            self.finals.append(state)
        for _, after in self.strikes(state) if alone is None else ():
            yield after

    def _alone(self, state: State) -> list[tuple[int, int, int, int, int]] | None:
        """Return the steps of one node if it is enough to explore only this node's steps next, else None.

        It is enough if every link from a running node to this one has a message, so that no event elsewhere changes the
        node's possible steps, and if the node cannot use a limit that it shares with others.
        """
        if state[self.at["restarts"]] or state[self.at["resets"]]:
            return None
        nodes, known, best = self.nodes, self.nodes.known, None
        for node in range(self.n):
            if not known[state[node]].alive or (state[self.at["deaths"]] and self.may_die[node]):
                continue
            if any(
                not state[link] and link not in self.cut | self.held and known[state[sender]].alive
                for sender, link in enumerate(range(self.n + node, self.first, self.n))
                if sender != node
            ):
                continue
            if any(choice.limit and state[choice.limit] for choice in nodes.choices(state[node])):
                continue
            steps = list(self.steps_of(state, node))
            if best is None or len(steps) < len(best):
                best = steps
        return best or None

    # -- fair endings ----------------------------------------------------------------------------------------------

    def _end(self, until: float) -> None:
        """Run the fair endings of some states."""
        self.ending_began = True
        count = min(self.scope.endings, len(self.order))
        for number in range(count):
            if time.process_time() > until:
                return
            self.at_fault = (number + 1) * len(self.order) // count - 1
            state = self.form.unpack(self.order[self.at_fault])
            alive = sum(self.nodes.known[place].alive for place in state[: self.n])
            if self.n - alive <= (self.n - 1) // 2:
                self.ending(state).run()
                self.report.ended += 1

    def ending(self, state: State) -> Ending:
        nodes, names = self.nodes, self.scope.names
        places = {name: thaw(nodes.known[state[node]].data) for node, name in enumerate(names)}
        under_way = [
            (names[link // self.n], names[link % self.n], decode(nodes.messages.values[message]))
            for link, queue in enumerate(state[self.n : self.first])
            for message in nodes.queues.values[queue]
        ]
        return Ending(places, under_way)

    def check(self, before: State, after: list[int]) -> None:
        known = self.nodes.known
        for node in range(self.n):
            place = after[node]
            if place != before[node] and known[place].facts != known[before[node]].facts:
                for other in after[: self.n]:
                    self.nodes.check(place, other)


# -- prefixes ----------------------------------------------------------------------------------------------------------


class ScriptError(Exception):
    """Raised when a step of a prefix cannot happen."""


def follow(explorer: Explorer, state: State, words: str) -> State:
    """Return the state after one step of a prefix.

    Args:
        state: the state before the step.
        words: ``A submits``, ``A hears B`` (the first message on that link; from several nodes, one message each),
            ``A gives up P``, ``A suspects P``, ``A tries again``, ``A reports`` (its heartbeat), ``A syncs``,
            ``A dies``, ``A restarts``, or ``A meets B`` (their link breaks and opens again).

    Raises:
        ScriptError: the step is not possible.
        LawBrokenError: a law is broken.
    """
    name, verb, *rest = words.split()
    node = explorer.nodes.index[name]
    match verb, rest:
        case "hears", peers:
            for peer in peers:
                state = _hear(explorer, state, node, explorer.nodes.index[peer], words)
            return state
        case (("submits" | "reports" | "syncs"), []):
            after = explorer.take(state, (node, explorer.nodes.event((EVENTS[verb],)), 0, 0, 0))
        case ("gives", ["up", command]) | ("suspects", [command]):
            what = "give up" if verb == "gives" else "suspect"
            after = explorer.take(state, (node, _choice(explorer, state, node, what, command), 0, 0, 0))
        case "tries", ["again"]:
            after = explorer.take(state, (node, _choice(explorer, state, node, "timer", ""), 0, 0, 0))
        case "restarts", []:
            after = list(state)
            explorer.restart(after, node)
        case "dies", []:
            after = list(state)
            explorer.die(after, node)
        case "meets", [peer]:
            after = list(state)
            explorer.meet(after, node, explorer.nodes.index[peer])
        case _:
            raise ScriptError(f"nothing is called {words!r}")
    explorer.check(state, after)
    return tuple(after)


def _hear(explorer: Explorer, state: State, node: int, sender: int, words: str) -> State:
    link = explorer.n + sender * explorer.n + node
    if not state[link] or not explorer.nodes.known[state[node]].alive:
        raise ScriptError(f"{words}: there is nothing on the link")
    event = explorer.receive(sender, explorer.nodes.queues.values[state[link]][0])
    after = explorer.take(state, (node, event, link, explorer.nodes.rest(state[link], 0), 0))
    explorer.check(state, after)
    return tuple(after)


def _choice(explorer: Explorer, state: State, node: int, what: str, command: str) -> int:
    """Return a spontaneous event of a node, by its kind and a command."""
    place = thaw(explorer.nodes.known[state[node]].data)
    for event in place.choices():
        if event[0] != what:
            continue
        if what == "timer" and event[1] == "request_again":
            return explorer.nodes.event(event)
        if isinstance(event[1], Txid):
            transaction = place.core.state.votes.by_txid[event[1]].transaction
            if transaction is not None and command in transaction.commands:
                return explorer.nodes.event(event)
    raise ScriptError(f"{explorer.scope.names[node]} cannot {what} {command}")
