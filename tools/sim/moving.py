"""The laws of progress under load: closed and safe time advance, a BEGIN that came in time is not rejected as late, and
the time for which a node holds back because of reservations is limited, whatever it hears.

Histories and the final rest do not show such faults: a cluster whose safe time stands still under load recovers when
clients stop, and reservations decide nothing.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bedrockish.core.coordinator.reservations import TIME_SHARE
from bedrockish.core.node import idle_ms
from bedrockish.core.protocol.events import Assembled, Event, Received
from bedrockish.core.protocol.messages import Begin, Message, Reason, Reject, decode
from bedrockish.core.protocol.pieces import Part
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Txid, decode_transaction
from bedrockish_journal.model.vector import covers

if TYPE_CHECKING:
    from tools.sim.machine import Machine

IN_TIME_S = 4.5  # a voter waits at most 5 s for a comparison, or for a message that is being assembled
GROWS_S = 3.0  # time within which a learner that lacks commits applies one
SAFE_S = 6.0  # longest lag of safe time in a calm world: two rounds of gossip, and the longest wait of a transaction
LATE_S = 0.1  # time in which a machine that stood still takes the steps that end a reservation
IDLE_S = 2.0  # for this time after a node was idle, its times may lag by the long interval of idle heartbeats
NEVER = 1 << 64


@dataclass
class _Hold:
    txid: Txid | None = None  # the reservation that it honours now
    since: float = 0.0  # the time since which it honours this one
    over: float = 0.0  # the time of the first step after the reservation should have ended; 0 before such a step
    spent: float = 0.0  # seconds for which it has honoured reservations of other machines, each up to its longest time


@dataclass
class _Run:
    boot: int
    began: float  # the time of its start
    awake: float  # the time since which it has taken steps without a pause
    last: float  # the time of its last step
    looked: float  # the time of the last check of closed and safe time
    clocks: deque[tuple[float, int]] = field(default_factory=deque)  # recent values of its clock, each with its time
    idle: float = -IDLE_S  # the last time at which its node was idle
    # ``lowest`` and ``before``: the lowest open clock since the last check, and in the period before it.
    lowest: int = NEVER
    before: int = NEVER
    in_time: dict[Txid, float] = field(default_factory=dict)  # the BEGINs that came in time, with their times
    # The messages that are being assembled from pieces, with their times.
    reading: dict[tuple[str, tuple[Part, ...]], float] = field(default_factory=dict)
    applied: int = 0  # the number of applied entries at the last check
    grown: float = 0.0  # the time at which this number last grew
    hold: _Hold = field(default_factory=_Hold)


class Moving:
    """The progress of all machines' closed and safe times, and the reservations that they honour."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def _run(self, machine: "Machine") -> _Run:
        run, now = self._runs.get(machine.name), machine.world.now
        if run is None or run.boot != machine.boot:
            run = self._runs[machine.name] = _Run(machine.boot, now, now, now, now)
        return run

    # -- BEGINs that came in time -----------------------------------------------------------------------------------

    def reads(self, machine: "Machine", peer: str, parts: tuple[Part, ...]) -> None:
        """Record that a node has all pieces of a message, and assembles it."""
        self._run(machine).reading[peer, parts] = machine.world.now

    def hears(self, machine: "Machine", event: Event) -> None:
        """Record a BEGIN that came in time, before its node processes it."""
        assert machine.node is not None
        state, run = machine.node.state, self._run(machine)
        match event:
            case Received(_, Begin(body)):
                came, closed = machine.world.now, state.clock.closed
            case Assembled(peer, parts, data):
                known = next(one for one in state.pieces.assembling if one.peer == peer and one.parts == parts)
                came, closed = run.reading.pop((peer, parts), machine.world.now), known.closable
                try:
                    message = decode(data)
                except EntryMalformedError:
                    return
                if not isinstance(message, Begin):
                    return
                body = message.body
            case _:
                return
        transaction = decode_transaction(body)
        # A BEGIN that has to wait for its base may become late.
        waits = not covers(state.timelines.applied, transaction.base)
        if transaction.txid.clock > max(closed, state.clock.floor) and not waits:
            run.in_time.setdefault(transaction.txid, came)

    def broken_by(self, machine: "Machine", message: Message) -> str:
        """Return a description of the break of the law by a message, or an empty text."""
        if not isinstance(message, Reject):
            return ""
        # A rejected transaction leaves no vote, so a repeated BEGIN may be late.
        came = self._run(machine).in_time.pop(message.txid, None)
        if message.reason != Reason.TOO_LATE or came is None or machine.world.now - came > IN_TIME_S:
            return ""
        return f"{machine.name} rejects {message.txid} as too late, which came in time at {came:.3f} s"

    # -- progress of closed and safe time ---------------------------------------------------------------------------

    def broken(self, machine: "Machine") -> tuple[str, str]:
        """Check a machine after a step; return the law that it breaks and a description, or two empty texts."""
        law, story = self._holds_back(machine)
        return (law, story) if law else self._stands_still(machine)

    def _stands_still(self, machine: "Machine") -> tuple[str, str]:
        assert machine.node is not None
        state, run, now = machine.node.state, self._run(machine), machine.world.now
        if machine.node.is_slow:
            run.idle = now
        heartbeat_s = state.settings.heartbeat_ms / 1000
        if now - run.idle < IDLE_S:
            heartbeat_s = idle_ms(state.settings) / 1000
        if now - run.last > 2 * heartbeat_s + 0.05:  # the machine has stood still
            run.awake, run.lowest, run.before = now, NEVER, NEVER
            run.clocks.clear()
        run.last = now
        if not run.clocks or now - run.clocks[-1][0] >= heartbeat_s / 4:
            run.clocks.append((now, state.clock.value))
        run.lowest = min(run.lowest, self._lowest(machine))
        period_s = 3 * heartbeat_s + 0.1
        if now - run.looked < period_s or not state.health.applies:
            return "", ""
        lag_s = state.settings.closing_lag_ms / 1000 + period_s
        lowest, run.before, run.lowest, run.looked = min(run.lowest, run.before), run.lowest, NEVER, now
        closable = min(self._clock_at(run, now - lag_s), lowest - 1)
        if now - run.awake > lag_s + period_s and state.clock.closed < closable:
            return "closed goes on", f"{machine.name} has closed {state.clock.closed:x}, and could close {closable:x}"
        safe_s = SAFE_S + 2 * lag_s
        while run.clocks and run.clocks[0][0] < now - 2 * max(lag_s, safe_s):
            run.clocks.popleft()
        world = machine.world
        if world.options.is_calm and not world.closing and now - run.awake > safe_s:
            due = self._clock_at(run, now - safe_s)
            if state.clock.safe < due and not self._catches_up(machine):
                return (
                    "safe goes on",
                    f"{machine.name} has {state.clock.safe:x} as safe, {due:x} was {safe_s:.1f} s ago",
                )
        return "", ""

    def _catches_up(self, machine: "Machine") -> bool:
        """Return whether a learner that lacks commits fetches and applies them.

        No transaction waits for a learner. With small pieces and long delays, voters commit more than a link carries.
        """
        assert machine.node is not None
        state, run, now = machine.node.state, self._run(machine), machine.world.now
        if state.roster.is_voter(state.me) or all(
            covers(state.timelines.applied, peer.applied) for peer in state.roster.peers.values()
        ):
            return False
        applied = sum(state.timelines.applied.values())
        if applied > run.applied:
            run.applied, run.grown = applied, now
        return now - run.grown < GROWS_S

    def _lowest(self, machine: "Machine") -> int:
        """Return the lowest clock of a transaction that a node may still apply."""
        assert machine.node is not None
        state, run, world = machine.node.state, self._run(machine), machine.world
        opened = [state.votes.pending.smallest_clock(), machine.node.apply_queue.smallest_unapplied()]
        found = [clock for clock in opened if clock is not None]
        if world.options.compare_ms:
            found += [txid.clock for txid in machine.care.comparing]
        if run.reading:
            found.append(min(one.closable for one in state.pieces.assembling) if state.pieces.assembling else NEVER)
        return min(found, default=NEVER)

    @staticmethod
    def _clock_at(run: _Run, seconds: float) -> int:
        return next((clock for when, clock in reversed(run.clocks) if when <= seconds), 0)

    # -- reservations -----------------------------------------------------------------------------------------------

    def _holds_back(self, machine: "Machine") -> tuple[str, str]:
        assert machine.node is not None
        run, now, longest_s = self._run(machine), machine.world.now, machine.node.state.settings.reserve_ms / 1000
        hold, reservation = run.hold, machine.node.coordinator.contention.reservations.honoured
        txid = None if reservation is None else reservation.txid
        if txid != hold.txid:
            if hold.txid is not None:
                hold.spent += min(now - hold.since, longest_s)
            hold.txid, hold.since, hold.over = txid, now, 0.0
        elif txid is not None and now > hold.since + longest_s:
            hold.over = hold.over or now
            if now > hold.over + LATE_S:
                return "a reservation ends", f"{machine.name} holds back for {txid} since {hold.since:.3f} s"
        if hold.spent > longest_s + TIME_SHARE * (now - run.began) + LATE_S:
            return "reservations have a share of the time", f"{machine.name} has held back for {hold.spent:.3f} s"
        return "", ""
