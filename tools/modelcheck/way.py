"""The way to a broken law, event by event, in words."""

from collections.abc import Iterator
from itertools import pairwise

from bedrockish.core.describe import Printer
from bedrockish.core.protocol.messages import decode
from bedrockish_journal.model.transaction import Txid
from tools.modelcheck.explore import Explorer, Report, State
from tools.modelcheck.scopes import Scope
from tools.sim.world import LawBrokenError


def search(scope: Scope, seconds: float) -> tuple[Report, tuple[str, ...]]:
    """Search a scope, and return the report and the way to a broken law, which is empty if no law broke."""
    explorer = Explorer(scope)
    report = explorer.search(seconds)
    return report, tuple(way_to_fault(explorer)) if report.law else ()


def way_to_fault(explorer: Explorer) -> list[str]:
    """Return the shortest sequence of events from the beginning to the state or event at which a law broke."""
    if not explorer.parents:
        return list(explorer.begun)  # the last of these steps broke the law
    line = [explorer.at_fault]
    while explorer.parents[line[-1]] >= 0:
        line.append(explorer.parents[line[-1]])
    keys = [explorer.order[number] for number in reversed(line)]
    told = [f"first, {words}" for words in explorer.begun]
    for before, after in pairwise(keys):
        state = explorer.form.unpack(before)
        told.append(next(words for words, found in _named(explorer, state) if explorer.form.pack(*found) == after))
    return [*told, _last(explorer, explorer.form.unpack(keys[-1]))]


def _named(explorer: Explorer, state: State) -> Iterator[tuple[str, list[int]]]:
    for step in explorer.steps(state):
        yield _words(explorer, step[0], step[1]), explorer.take(state, step)
    yield from explorer.strikes(state)


def _last(explorer: Explorer, state: State) -> str:
    if explorer.ending_began:
        return "and nothing more goes wrong"
    for step in explorer.steps(state):
        try:
            explorer.check(state, explorer.take(state, step))
        except LawBrokenError:
            return _words(explorer, step[0], step[1])
    for words, after in explorer.strikes(state):
        try:
            explorer.check(state, after)
        except LawBrokenError:
            return words
    return "and a node is struck"


def _words(explorer: Explorer, node: int, event: int) -> str:
    nodes, me = explorer.nodes, explorer.scope.names[node]
    match nodes.events.values[event]:
        case ("receive", peer, message):
            printer = Printer(explorer.scope.names, lambda txid: _name(explorer, txid))
            return f"{me} hears from {peer}: {printer.message(decode(nodes.messages.values[int(str(message))]))}"
        case (what, Txid() as txid):
            return f"{me}: {what} {_name(explorer, txid)}"
        case ("timer", name, Txid() as txid):
            return f"{me}: {name} {_name(explorer, txid)}"
        case found:
            return f"{me}: {' '.join(str(word) for word in found)}"


def _name(explorer: Explorer, txid: Txid) -> str:
    """Return the command of a transaction with its clock, which distinguishes two attempts."""
    commands = {(leader, command) for leader, command, *_ in explorer.scope.requests if leader == txid.leader}
    return f"{'/'.join(sorted(command for _, command in commands))}@{txid.leader}{txid.clock}"
