"""Looks whether the model check notices when a rule of the protocol is taken away.

The faults are those of ``tools.sim.faulty``. Most edit the core, or the disk that the model shares with the simulator;
those that edit the simulator's own driver have a twin here, for this driver.
"""

from dataclasses import dataclass

from bedrockish.core.messages import WIRE
from tools.modelcheck.explore import Explorer, Report
from tools.modelcheck.place import EARLY
from tools.modelcheck.scopes import SCOPES, Scope
from tools.modelcheck.way import way_to_fault
from tools.sim.editing import in_force
from tools.sim.faulty import FAULTS

EVERY = frozenset(kind.__name__ for kind, _ in WIRE.values())
IN_THE_DRIVER = {
    "reply before durable": frozenset({"Reply"}),
    "messages before durable": EVERY,
    "BEGIN before durable": frozenset({"Begin"}),
    "COMMIT before durable": frozenset({"Commit"}),
}


@dataclass(frozen=True)
class Found:
    """A scope in which a fault showed, what came of it there, and the shortest way to it."""

    scope: str
    report: Report
    way: tuple[str, ...]


def search(scope: Scope, seconds: float) -> tuple[Report, tuple[str, ...]]:
    """Go through a scope; the way to a broken law is empty if none is."""
    explorer = Explorer(scope)
    report = explorer.search(seconds)
    return report, tuple(way_to_fault(explorer)) if report.law else ()


def hunt(fault: str, names: tuple[str, ...], seconds: float) -> Found | None:
    """Go through scopes, one after the other, with a fault in force, until a law breaks.

    Args:
        fault: a name in ``FAULTS``.
        names: of the scopes.
        seconds: for each of them.
    """
    EARLY.update(IN_THE_DRIVER.get(fault, ()))
    try:
        with in_force(FAULTS[fault]):
            for name in names:
                report, way = search(SCOPES[name], seconds)
                if report.law:
                    return Found(name, report, way)
    finally:
        EARLY.clear()
    return None
