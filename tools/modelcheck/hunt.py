"""Tests that the model check detects the removal of a rule of the protocol.

The faults are those of ``tools.sim.faulty``. Most edit the core, or the disk that the model shares with the simulator.
For those that edit the simulator's own driver, there is an equivalent for this driver here.
"""

from dataclasses import dataclass

from bedrockish.core.protocol.messages import WIRE
from tools.editing import in_force
from tools.modelcheck.explore import Explorer, Report
from tools.modelcheck.guided import ALL
from tools.modelcheck.place import EARLY
from tools.modelcheck.scopes import Scope
from tools.modelcheck.way import way_to_fault
from tools.sim.faulty import FAULTS

EVERY = frozenset(kind.__name__ for kind, _ in WIRE.values())
IN_THE_DRIVER = {
    "reply before durable": frozenset({"Reply"}),
    "messages before durable": EVERY,
    "COMMIT before durable": frozenset({"Commit"}),
}
# The scopes that detect a fault quickly. Other faults are searched for in all scopes, which takes long.
SEEN = {
    "quorum less one": "meet-3",
    "plain majority at 7": "orphans-7",
    "reply before durable": "sync-3",
    "messages before durable": "sync-3",
    "COMMIT before durable": "sync-3",
    "no test 3": "meet-3",
    "no test 4": "meet-3",
    "no test of its own": "meet-3",
    "after ignored": "meet-3",
    "COMMIT ahead of a gap counts": "gap-3",
    "repeat rewrites rows": "recover-3",
    "no command key": "retry-elsewhere-3",
    "holds without tests": "recover-3",
    "judged by one": "recover-3",
    "rolled back told early": "recover-rollback-3",
    "ballot 1 over a higher one": "recover-rollback-3",
    "votes are volatile": "restarts-3",
    "waiting goes on after a rollback": "rollback-3",
    "rollbacks dropped": "again-3",
    "base not covered": "uncovered-3",
    "no test 5": "given-up-5",
    "exclusion ignores what is known": "known-end-5",
    "leader counts after its promise": "promised-5",
    "BEGIN before its vote at five": "forgotten-5",
    "BEGIN before its ceiling": "same-clock-3",
    "BEGIN before its base": "lost-base-3",
    "votes after its promise": "late-vote-5",
    "promises below its promise": "two-ballots-5",
    "cut is volatile": "cut-3",
    "acceptances are volatile": "restarted-acceptor-3",
    "the lowest accepted ballot wins": "restarted-acceptor-3",
    "accepted rollbacks are volatile": "partial-rollback-3",
    "acceptances of other ballots count": "two-recoverers-3",
    "promises of other ballots count": "two-recoverers-3",
}


@dataclass(frozen=True)
class Found:
    """A scope that detected a fault, the report of its search, and the shortest way to the broken law."""

    scope: str
    report: Report
    way: tuple[str, ...]


def search(scope: Scope, seconds: float) -> tuple[Report, tuple[str, ...]]:
    """Search a scope, and return the report and the way to a broken law, which is empty if no law broke."""
    explorer = Explorer(scope)
    report = explorer.search(seconds)
    return report, tuple(way_to_fault(explorer)) if report.law else ()


def hunt(fault: str, names: tuple[str, ...], seconds: float) -> Found | None:
    """Search scopes one after the other with a fault in force until a law breaks; return it, or None.

    Args:
        fault: a name in ``FAULTS``.
        names: the names of the scopes.
        seconds: the time for each scope.
    """
    EARLY.update(IN_THE_DRIVER.get(fault, ()))
    try:
        with in_force(FAULTS[fault]):
            for name in names:
                report, way = search(ALL[name], seconds)
                if report.law:
                    return Found(name, report, way)
    finally:
        EARLY.clear()
    return None
