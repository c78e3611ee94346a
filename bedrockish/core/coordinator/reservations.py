"""Reservations: other requests wait for a moment, so that a statement over a large part of a busy table can commit.

Such a statement conflicts with every commit on that table between its snapshot and its own commit. While clients write
rows of the table all the time, at any node, it would be executed again for ever. So after some failed executions its
node gossips a *reservation*: the access set of the statement, and a duration. Until the reservation ends, no leader
begins a transaction that conflicts with it; requests for such transactions wait. A change of the members conflicts with
every transaction, so its node makes a reservation at once.

The votes do not depend on reservations. Like turns they only affect timing: if a leader does not receive one, or is of
an older release, its transactions cost the statement another execution. Each node bounds the time that reservations can
cost its own requests:

* One reservation is honoured at a time, the oldest of all that are gossiped.
* It ends with its request, when its node falls silent, and after its duration, which is ``reserve_ms`` at most.
* All reservations together get a quarter of the time. A reservation waits until its whole duration is within that
  share.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import cbor2

from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.wait_queue import WaitQueue
from bedrockish.core.protocol.messages import Reserved, read_access_set
from bedrockish.core.protocol.pieces import COMMAND
from bedrockish.core.state.certifier import EVERYTHING
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import (
    AccessSet,
    Range,
    clocks_from,
    conflict,
    is_clock,
    object_of,
    object_range,
)
from bedrockish_journal.model.transaction import MEMBERS, ROWS, Txid

ATTEMPTS_MIN, AGE_S_MIN = 2, 0.5  # a request makes a reservation after this many executions and this many seconds
KEYS_MIN = 64  # a request for fewer keys and for no range never makes a reservation
CHANGE_MS = 1_000  # shortest reservation of a change of the members: its node may not know how long commits take
EXECUTIONS = 2.5  # the duration of a reservation, as a multiple of the time of the request's last failed execution
SETTLING = 4  # commit times after which the transactions that began before a reservation arrived have usually ended
TIME_SHARE = 0.25  # the share of the time for all reservations together
ALL_CLOCKS = clocks_from(0)
EXACT_BYTES_MAX = 2_000  # an access set up to this size is gossiped exactly; a larger one as its tables and indexes


class Reservation(NamedTuple):
    """An access set that a leader reserves. ``txid``: the clock of the request, and the leader; not a transaction."""

    txid: Txid
    duration_ms: int
    access_set: AccessSet


class Reservations:
    """The reservations that this node has heard, and the one that it honours."""

    def __init__(
        self,
        state: State,
        in_flight: Mapping[int, InFlight],  # all requests that are under way
        wait_queue: WaitQueue,
        pause: Callable[[InFlight, float], None],  # executes a request again after some milliseconds
    ) -> None:
        self._state, self._in_flight, self._wait_queue, self._pause = state, in_flight, wait_queue, pause
        self.honoured: Reservation | None = None  # the reservation that is honoured here now, or None
        self.is_changed = False  # whether this node's own reservation has changed and has to be gossiped
        self.latest: dict[str, Reservation] = {}  # the latest reservation of each leader, including this node's own
        self._used_up: dict[str, Txid] = {}  # by leader, its last reservation that was honoured for its full duration
        self._own: int | None = None  # the request that has this node's reservation
        self._until = 0.0  # seconds at which the honoured reservation ends
        # ``_left_s``: the seconds that were available for reservations at the moment ``_as_of``; these grow with time.
        self._left_s, self._as_of = state.settings.reserve_ms / 1000, state.clock.now.seconds

    # -- our own ---------------------------------------------------------------------------------------------------

    def reserve_if_needed(self, inflight: InFlight, access_set: AccessSet, kind: str = ROWS) -> None:
        """Make a reservation for a request that conflicts with other transactions, if it qualifies.

        Args:
            access_set: the access set of its last execution.
        """
        if not self._qualifies(inflight, access_set, kind):
            return
        # The request is executed again and again without a commit. If the requests behind it waited all that time, they
        # would need reservations themselves.
        self._wait_queue.unblock_behind(inflight)
        # A longer execution would not end within its reservation, so others would wait for nothing. A kept execution is
        # not repeated.
        is_short = inflight.kept is not None or 1000 * inflight.execution_s < self._state.settings.reserve_ms
        if self._own is None and is_short:
            self._ask(inflight, without_names(access_set), CHANGE_MS if kind == MEMBERS else 0)

    def _qualifies(self, inflight: InFlight, access_set: AccessSet, kind: str) -> bool:
        """Return whether a request is large and old enough, and was executed often enough, to need a reservation."""
        if inflight.once:
            return False
        if kind == MEMBERS:
            return True
        if inflight.attempts < ATTEMPTS_MIN or self._state.clock.now.seconds - inflight.arrived_at < AGE_S_MIN:
            return False
        # Changes of the schema are excluded, by their kind or by their range of clocks: after a rejection, the next
        # attempt of a change has a longer delay until it comes into force.
        first, end = ALL_CLOCKS
        if kind != ROWS or any(low < end and first < high for low, high in access_set.write_ranges):
            return False
        return access_set.has_ranges or len(without_names(access_set).touched) >= KEYS_MIN

    def _ask(self, inflight: InFlight, access_set: AccessSet, at_least_ms: int) -> None:
        state = self._state
        wanted_ms = max(at_least_ms, 1000 * (EXECUTIONS * inflight.execution_s + 3 * SETTLING * state.commit_s))
        for_ms = min(state.settings.reserve_ms, 1 + round(wanted_ms))
        access_set, encoded = shortened(access_set)
        txid = Txid(state.clock.tick(), state.me)
        state.reserved = (txid.clock, for_ms, encoded)
        self._own, self.is_changed = inflight.number, True
        self.latest[state.me] = Reservation(txid, for_ms, access_set)
        inflight.reserves = True
        state.counts["reservations"] += 1
        self.choose()

    def ended(self, inflight: InFlight) -> None:
        """End the reservation of a request that was answered or dropped."""
        if inflight.reserves:
            self._withdraw(inflight)
            self.choose()

    def _withdraw(self, inflight: InFlight) -> None:
        inflight.reserves = inflight.goes_first = False
        del self.latest[self._state.me]
        self._own, self._state.reserved, self.is_changed = None, None, True

    @property
    def _own_request(self) -> InFlight | None:
        """The request that has this node's reservation, if it is under way."""
        return None if self._own is None else self._in_flight.get(self._own)

    def settling_ms(self) -> float:
        """Return the milliseconds after which, with a reservation, earlier transactions have usually ended."""
        return 1000 * SETTLING * self._state.commit_s

    # -- of all leaders --------------------------------------------------------------------------------------------

    def blocks(self, inflight: InFlight, access_set: AccessSet, kind: str) -> Txid | None:
        """Return the reservation for which a request has to wait, or None.

        Changes of the schema or of the members never wait: they are short.
        """
        held = self.honoured
        if held is None or inflight.goes_first or kind != ROWS or conflict(access_set, held.access_set) is None:
            return None
        return held.txid

    def heard(self, peer: str, reserved: Reserved) -> None:
        """Record the reservation in a peer's gossip; None: the peer has none any more.

        Raises:
            EntryMalformedError: its access set cannot be read.
        """
        known = self.latest.get(peer)
        if reserved is None:
            if known is not None:
                del self.latest[peer]
                self.choose()
            return
        clock, for_ms, encoded = reserved
        if known is not None and known.txid.clock == clock:
            return  # the reservation is known already: each gossip repeats it
        access_set = read_access_set(encoded)
        self.latest[peer] = Reservation(Txid(clock, peer), for_ms, access_set)
        self.choose()

    def check(self) -> None:
        """Drop the reservations of silent nodes, and honour the oldest one for which there is time now."""
        if self.latest:
            self.choose()

    def choose(self) -> None:
        """Honour the oldest reservation that was not honoured for its whole duration, if there is time for it."""
        state, now, held = self._state, self._state.clock.now.seconds, self.honoured
        silent_s = state.settings.suspicion_ms / 1000
        for leader in [leader for leader in self.latest if leader != state.me]:
            peer = state.roster.peers.get(leader)
            if peer is None or not peer.up or now - peer.heard > silent_s:
                del self.latest[leader]
        if held is not None and now >= self._until:
            self._used_up[held.txid.leader] = held.txid
            inflight = self._own_request
            if inflight is not None and inflight.goes_first:
                # The request did not commit in time. It may make a new reservation, which is younger than the others.
                self._withdraw(inflight)
        # A reservation of 0 ms is skipped: it could never be honoured, would never end, and would block the others.
        waiting = (
            one for one in self.latest.values() if one.duration_ms and self._used_up.get(one.txid.leader) != one.txid
        )
        first = min(waiting, key=lambda one: one.txid, default=None)
        if held is not None and (first is None or first.txid != held.txid):
            self._release(held)
        if first is not None and self.honoured is None:
            self._honour(first)

    def _honour(self, first: Reservation) -> None:
        state, now = self._state, self._state.clock.now.seconds
        limit_s = state.settings.reserve_ms / 1000
        wanted_s = min(first.duration_ms / 1000, limit_s)
        left_s = min(limit_s, self._left_s + TIME_SHARE * (now - self._as_of))
        # Honour the reservation for its full duration or not at all: one that ends during an execution only delays
        # other requests.
        if not 0 < wanted_s <= left_s:
            return
        self.honoured, self._until = first, now + wanted_s
        self._left_s, self._as_of = left_s, now
        state.timers.set(1000 * wanted_s, Timer.RESERVATION)
        inflight = self._own_request
        if first.txid.leader == state.me and inflight is not None:
            inflight.goes_first = True
            # The requests behind it wait for the end of the reservation instead, like all others.
            self._wait_queue.unblock_behind(inflight)
            # It must not wait for another request, which may wait for this reservation.
            if inflight.stage is Stage.WAITING:
                self._wait_queue.remove(inflight)
                self._pause(inflight, self.settling_ms())

    def _release(self, held: Reservation) -> None:
        now = self._state.clock.now.seconds
        self._left_s, self._as_of = self._left_s - (now - self._as_of), now
        self.honoured = None
        inflight = self._own_request
        if inflight is not None:
            inflight.goes_first = False  # another reservation may be honoured next
        self._wait_queue.unblock_all(held.txid)


def without_names(access_set: AccessSet) -> AccessSet:
    """Return an access set without the keys of command ids and clocks, which no other transaction touches."""

    def rows(points: frozenset[bytes]) -> frozenset[bytes]:
        return frozenset(key for key in points if not key.startswith(COMMAND) and not is_clock(key))

    return AccessSet(
        rows(access_set.read_points), access_set.read_ranges, rows(access_set.write_points), access_set.write_ranges
    )


def shortened(access_set: AccessSet) -> tuple[AccessSet, bytes]:
    """Return an access set with its encoding; a long one is widened to whole tables and indexes, or to everything."""
    encoded = b""
    if len(access_set.touched) <= KEYS_MIN:
        encoded = cbor2.dumps(access_set.pack())
        if len(encoded) <= EXACT_BYTES_MAX:
            return access_set, encoded
    reads = _objects(access_set.read_points, access_set.read_ranges)
    writes = _objects(access_set.write_points, access_set.write_ranges)
    for found in (AccessSet(read_ranges=reads, write_ranges=writes), AccessSet(write_ranges=(EVERYTHING,))):
        encoded = cbor2.dumps(found.pack())
        if len(encoded) <= EXACT_BYTES_MAX:
            break
    return found, encoded


def _objects(points: frozenset[bytes], ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Return the ranges of all tables and indexes that some keys and ranges are in."""
    names = {object_of(key) for key in points}
    found = set[Range]()
    for low, high in ranges:
        name = object_of(low)
        # A range beyond one table is kept as it is.
        if high > object_range(name)[1]:
            found.add((low, high))
        else:
            names.add(name)
    return tuple(sorted(found.union(map(object_range, names))))
