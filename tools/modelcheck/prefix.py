"""The prefix of a scope: a script of the events before the search begins, in words.

A fault that needs twenty events in one order is too deep for a search that begins with an empty cluster. So some scopes
begin with a script up to a critical state, and search all states from there. Each step of the script must be possible,
with or without a deliberate fault; else ScriptError is raised.
"""

from typing import Protocol

from bedrockish_journal.model.transaction import Txid
from tools.modelcheck.frozen import thaw
from tools.modelcheck.nodes import Nodes
from tools.modelcheck.scopes import Scope

State = tuple[int, ...]


class Explorer(Protocol):
    """The interface that a script needs."""

    n: int
    nodes: Nodes
    scope: Scope

    def take(self, state: State, step: tuple[int, int, int, int, int]) -> list[int]:
        """Return the state after a step of one node."""

    def receive(self, sender: int, message: int) -> int:
        """Return the event of receiving a message."""

    def die(self, state: list[int], node: int) -> None:
        """Crash a node for good."""

    def restart(self, state: list[int], node: int) -> None:
        """Crash a node, and start it at once."""

    def meet(self, state: list[int], one: int, other: int) -> None:
        """Break a link, and open it again."""

    def check(self, before: State, after: list[int]) -> None:
        """Raise BrokenError if a law is broken."""


class ScriptError(Exception):
    """Raised when a step of a prefix cannot happen."""


def follow(explorer: Explorer, state: State, words: str) -> State:
    """Return the state after one step.

    Args:
        explorer: the explorer of the scope.
        state: the state before the step.
        words: ``A submits``, ``A hears B`` (the first message on that link; from several nodes, one message each),
            ``A gives up P``, ``A suspects P``, ``A tries again``, ``A reports`` (its heartbeat), ``A syncs``,
            ``A dies``, ``A restarts``, or ``A meets B`` (their link breaks and opens again).

    Raises:
        ScriptError: the step is not possible.
        BrokenError: a law is broken.
    """
    name, verb, *rest = words.split()
    node = explorer.nodes.index[name]
    match verb, rest:
        case "hears", peers:
            for peer in peers:
                state = _hear(explorer, state, node, explorer.nodes.index[peer], words)
            return state
        case "submits", []:
            after = explorer.take(state, (node, explorer.nodes.event(("submit",)), 0, 0, 0))
        case "gives", ["up", command]:
            after = explorer.take(state, (node, _choice(explorer, state, node, "give up", command), 0, 0, 0))
        case "suspects", [command]:
            after = explorer.take(state, (node, _choice(explorer, state, node, "suspect", command), 0, 0, 0))
        case "tries", ["again"]:
            after = explorer.take(state, (node, _choice(explorer, state, node, "timer", ""), 0, 0, 0))
        case "reports", []:
            after = explorer.take(state, (node, explorer.nodes.event(("heartbeat",)), 0, 0, 0))
        case "syncs", []:
            after = explorer.take(state, (node, explorer.nodes.event(("sync",)), 0, 0, 0))
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
    event = explorer.receive(sender, explorer.nodes.queues[state[link]][0])
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
