"""The laws of reservations: the time for which a node holds back because of them is limited, whatever it hears.

Reservations affect only timing and decide nothing, so histories do not show them. These laws check the reservations
that each node honours.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bedrockish.core.coordinator.reservations import SHARE
from bedrockish_journal.model.transaction import Txid

if TYPE_CHECKING:
    from tools.sim.machine import Machine

LATE_S = 0.1  # a machine that stood still ends a reservation in one of its next steps


@dataclass
class _Run:
    """A run of a machine."""

    boot: int
    began: float  # the time of its start
    held: Txid | None = None  # the reservation that it honours now
    since: float = 0.0  # the time since which it honours this one
    over: float = 0.0  # the time of the first step after a reservation's longest time; 0 without such a step
    spent: float = 0.0  # seconds for which it has honoured reservations of others, each counted up to its longest time


class Holding:
    """The reservations that all machines honour."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def broken(self, machine: "Machine", now: float) -> tuple[str, str]:
        """Check a machine after a step; return the law that it breaks and the story, or two empty texts."""
        assert machine.node is not None
        longest_s = machine.node.state.settings.reserve_ms / 1000
        run = self._runs.get(machine.name)
        if run is None or run.boot != machine.boot:
            run = self._runs[machine.name] = _Run(machine.boot, now)
        reservation = machine.node.coordinator.contention.reservations.held
        txid = None if reservation is None else reservation.txid
        if txid != run.held:
            if run.held is not None:
                run.spent += min(now - run.since, longest_s)
            run.held, run.since, run.over = txid, now, 0.0
        elif txid is not None and now > run.since + longest_s:
            run.over = run.over or now
            if now > run.over + LATE_S:
                return "a reservation ends", f"{machine.name} holds back for {txid} since {run.since:.3f} s"
        if run.spent > longest_s + SHARE * (now - run.began) + LATE_S:
            return "reservations have a share of the time", f"{machine.name} has held back for {run.spent:.3f} s"
        return "", ""
