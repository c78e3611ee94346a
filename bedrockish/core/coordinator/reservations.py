"""Others hold back for a moment, so that a statement over much of a busy table gets through.

It conflicts with whatever is committed there from its snapshot on until it is decided itself. Where others write rows
of the table all the time, at any node, it would be executed again for ever. So after some executions in vain its node
tells all others, in its gossip, what it has read and written and for how long it wants that for itself: a
*reservation*. Until its end no leader begins anything that conflicts with it; what they hold back goes on afterwards.

The votes know nothing of it. A reservation is timing and nothing else, as turns are: whoever does not hear of it, or is
of an older release, costs another execution. What others may lose by it is bounded at each node, whatever it hears:

* One is honoured at a time, the oldest that anybody tells.
* It ends with its request, when its node falls silent, and after the time that it has asked for, which is
  ``reserve_ms`` at most.
* In all, they have a quarter of the time. One that asks for more than is left of that waits until it is there.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import cbor2

from bedrockish.core.coordinator.request import InFlight, Stage
from bedrockish.core.coordinator.wait_queue import WaitQueue
from bedrockish.core.protocol.messages import Reserved
from bedrockish.core.protocol.pieces import COMMAND
from bedrockish.core.state.certifier import EVERYTHING
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
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import ROWS, Txid

IN_VAIN, TIRED_S = 2, 0.5  # executions, and seconds since it came, after which a request asks the others to hold back
WIDE = 64  # keys: who wants fewer, and no range, waits in line with those that want the same ones
TIMES = 2.5  # as many times as long as its last execution in vain took is what a request asks for
SETTLING = 4  # commits' times after which what others had begun before they heard of it has ended, as a rule
SHARE = 0.25  # of the time in which others hold back
CLOCKS = clocks_from(0)
SAID_BYTES = 2_000  # of an access set that is told as it is; of a larger one, the tables and indexes are told


class Reservation(NamedTuple):
    """What a leader wants alone. ``txid`` is the clock at which it asked, and who: no transaction has that name."""

    txid: Txid
    for_ms: int
    access_set: AccessSet


class Reservations:
    """Whose turn it is alone, as this node has heard.

    Args:
        state: of this node.
        in_flight: all requests that are under way.
        wait_queue: who waits for what.
        pause: executes a request again after so many milliseconds.

    Attributes:
        held: the reservation that is honoured here now.
        told: what leaders ask for, by leader, this node among them.
        is_news: what this node asks for has changed, and is to be told.
    """

    def __init__(
        self,
        state: State,
        in_flight: Mapping[int, InFlight],
        wait_queue: WaitQueue,
        pause: Callable[[InFlight, float], None],
    ) -> None:
        self._state, self._in_flight, self._wait_queue, self._pause = state, in_flight, wait_queue, pause
        self.held: Reservation | None = None
        self.is_news = False
        self.told: dict[str, Reservation] = {}
        self._spent: dict[str, Txid] = {}  # the last of each leader that was honoured until its time was over
        self._own: int | None = None  # the request that ours is of
        self._until = 0.0  # seconds at which the one that is honoured ends
        # What may still be honoured, in seconds, as of a moment: it grows with the time, up to the longest one.
        self._left_s, self._as_of = state.settings.reserve_ms / 1000, state.clock.now.seconds

    # -- ours ------------------------------------------------------------------------------------------------------

    def in_vain(self, inflight: InFlight, access_set: AccessSet, kind: str = ROWS) -> None:
        """A request was executed in vain, or waits, because of somebody else: ask the others to hold back, if need be.

        Args:
            inflight: the request.
            access_set: of its last execution.
            kind: of what it would be.
        """
        if not self._is_tired(inflight, access_set, kind):
            return
        # It goes on and does not come through: those who stand behind it would wait as long, and it would be for them
        # to be tired next.
        self._wait_queue.leave(inflight)
        # It would not get through in that time either, and others would have waited for nothing. Not so what is only to
        # be begun again.
        is_short = inflight.kept is not None or 1000 * inflight.took_s < self._state.settings.reserve_ms
        if self._own is None and is_short:
            self._ask(inflight, without_names(access_set))

    def _is_tired(self, inflight: InFlight, access_set: AccessSet, kind: str) -> bool:
        """Whether a request wants much, and was here for so long, and executed so often, that waiting is no help."""
        if inflight.attempts < IN_VAIN or inflight.once or self._state.clock.now.seconds - inflight.came < TIRED_S:
            return False
        # A change of the schema or of the members, which has its own ways: by its kind, or as it is certified.
        if kind != ROWS or any(low < CLOCKS[1] and CLOCKS[0] < high for low, high in access_set.write_ranges):
            return False
        return access_set.has_ranges or len(without_names(access_set).touched) >= WIDE

    def _ask(self, inflight: InFlight, access_set: AccessSet) -> None:
        state = self._state
        wanted_ms = 1000 * (TIMES * inflight.took_s + 3 * SETTLING * state.commit_s)
        for_ms = min(state.settings.reserve_ms, 1 + round(wanted_ms))
        access_set, said = short(access_set)
        txid = Txid(state.clock.tick(), state.me)
        state.reserved = (txid.clock, for_ms, said)
        self._own, self.is_news = inflight.number, True
        self.told[state.me] = Reservation(txid, for_ms, access_set)
        inflight.reserves = True
        state.counts["reservations"] += 1
        self.choose()

    def ended(self, inflight: InFlight) -> None:
        """A request needs no more from us."""
        if inflight.reserves:
            self._take_back(inflight)
            self.choose()

    def _take_back(self, inflight: InFlight) -> None:
        inflight.reserves = inflight.goes_first = False
        del self.told[self._state.me]
        self._own, self._state.reserved, self.is_news = None, None, True

    @property
    def _asking(self) -> InFlight | None:
        """The request that ours is of, if it is under way."""
        return None if self._own is None else self._in_flight.get(self._own)

    def settling_ms(self) -> float:
        """Return how long whoever goes first pauses: what others had begun before ends meanwhile."""
        return 1000 * SETTLING * self._state.commit_s

    # -- everybody's -----------------------------------------------------------------------------------------------

    def blocks(self, inflight: InFlight, access_set: AccessSet, kind: str) -> Txid | None:
        """Return the reservation for which a request has to wait, None if there is none.

        A change of the schema or of the members has its own ways to get through, and is short.
        """
        held = self.held
        if held is None or inflight.goes_first or kind != ROWS or conflict(access_set, held.access_set) is None:
            return None
        return held.txid

    def heard(self, peer: str, reserved: Reserved) -> None:
        """A peer tells what it wants for itself, or that it wants nothing any more.

        Raises:
            EntryMalformedError: what it says cannot be read.
        """
        known = self.told.get(peer)
        if reserved is None:
            if known is not None:
                del self.told[peer]
                self.choose()
            return
        clock, for_ms, said = reserved
        if known is not None and known.txid.clock == clock:
            return  # each gossip says it again
        try:
            access_set = AccessSet.unpack(cbor2.loads(said))
        except (cbor2.CBORError, ValueError, TypeError) as error:
            raise EntryMalformedError(f"these {len(said)} bytes are no access set: {error}") from error
        self.told[peer] = Reservation(Txid(clock, peer), for_ms, access_set)
        self.choose()

    def check(self) -> None:
        """Let nobody wait for a node that is silent; honour what there is room for by now."""
        if self.told:
            self.choose()

    def choose(self) -> None:
        """Honour the oldest reservation of which the time is not over, if there is as much left for it."""
        state, now, held = self._state, self._state.clock.now.seconds, self.held
        silent_s = state.settings.suspicion_ms / 1000
        for leader in [leader for leader in self.told if leader != state.me]:
            peer = state.roster.peers.get(leader)
            if peer is None or not peer.up or now - peer.heard > silent_s:
                del self.told[leader]
        if held is not None and now >= self._until:
            self._spent[held.txid.leader] = held.txid
            inflight = self._asking
            if inflight is not None and inflight.goes_first:
                # Executed in vain again, it may ask again, and stands behind all who have asked since.
                self._take_back(inflight)
        # Nor does who asks for no time at all keep others from theirs: that is never there, and never over.
        waiting = (one for one in self.told.values() if one.for_ms and self._spent.get(one.txid.leader) != one.txid)
        first = min(waiting, key=lambda one: one.txid, default=None)
        if held is not None and (first is None or first.txid != held.txid):
            self._let_go(held)
        if first is not None and self.held is None:
            self._honour(first)

    def _honour(self, first: Reservation) -> None:
        state, now = self._state, self._state.clock.now.seconds
        limit_s = state.settings.reserve_ms / 1000
        wanted_s = min(first.for_ms / 1000, limit_s)
        left_s = min(limit_s, self._left_s + SHARE * (now - self._as_of))
        # All of it or nothing: who is stopped in the middle of its execution has kept others waiting for nothing.
        if not 0 < wanted_s <= left_s:
            return
        self.held, self._until = first, now + wanted_s
        self._left_s, self._as_of = left_s, now
        state.timers.set(1000 * wanted_s, "reservation")
        inflight = self._asking
        if first.txid.leader == state.me and inflight is not None:
            inflight.goes_first = True
            # Those behind it wait for the end of the reservation like all others, and not for that of its execution.
            self._wait_queue.leave(inflight)
            # Whatever it waits for behind others, they may be held back for its sake.
            if inflight.stage is Stage.WAITING:
                self._wait_queue.take_out(inflight)
                self._pause(inflight, self.settling_ms())

    def _let_go(self, held: Reservation) -> None:
        now = self._state.clock.now.seconds
        self._left_s, self._as_of = self._left_s - (now - self._as_of), now
        self.held = None
        inflight = self._asking
        if inflight is not None:
            inflight.goes_first = False  # somebody has asked before it, and was heard of later
        # They have nothing else in common: all go on.
        self._wait_queue.let_go(held.txid)


def without_names(access_set: AccessSet) -> AccessSet:
    """Return what was read and written of the database, without commands' ids and clocks, which nobody else touches."""

    def rows(points: frozenset[bytes]) -> frozenset[bytes]:
        return frozenset(key for key in points if not key.startswith(COMMAND) and not is_clock(key))

    return AccessSet(
        rows(access_set.read_points), access_set.read_ranges, rows(access_set.write_points), access_set.write_ranges
    )


def short(access_set: AccessSet) -> tuple[AccessSet, bytes]:
    """Return an access set, and as it is told: as it is if that is short, else whole tables and indexes, or all."""
    said = b""
    if len(access_set.touched) <= WIDE:
        said = cbor2.dumps(access_set.pack())
        if len(said) <= SAID_BYTES:
            return access_set, said
    reads = _objects(access_set.read_points, access_set.read_ranges)
    writes = _objects(access_set.write_points, access_set.write_ranges)
    for found in (AccessSet(read_ranges=reads, write_ranges=writes), AccessSet(write_ranges=(EVERYTHING,))):
        said = cbor2.dumps(found.pack())
        if len(said) <= SAID_BYTES:
            break
    return found, said


def _objects(points: frozenset[bytes], ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Return the ranges of all tables and indexes that some keys and ranges are in."""
    names = {object_of(key) for key in points}
    found = set[Range]()
    for low, high in ranges:
        name = object_of(low)
        # One that goes beyond its table is told as it is.
        if high > object_range(name)[1]:
            found.add((low, high))
        else:
            names.add(name)
    return tuple(sorted(found.union(map(object_range, names))))
