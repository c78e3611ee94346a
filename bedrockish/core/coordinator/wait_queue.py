"""The queues of requests that wait for transactions: they decide which request is next, and which share a transaction.

When a transaction ends, only the first request of its queue is executed. The others stay behind that request, because
they would only conflict with it. As many of them as possible are executed on top of it and share its transaction:
otherwise only one command with a hot key would commit in each round trip. When the first request has begun its
transaction, the requests that conflict with it wait for its end, and the rest are executed.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from bedrockish.core.coordinator.request import InFlight, Ready, Stage
from bedrockish.core.state.access_index import AccessIndex
from bedrockish.core.state.state import State
from bedrockish_journal.model.access_set import AccessSet, clocks_from, conflict
from bedrockish_journal.model.clock import CLOCK_LIMIT
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.model.vector import Vector

TURN_COMMITS = 4  # the length of a leader's turn, in commit times (the usual time from BEGIN to the quorum)
CHANGE_S_MAX = 0.2  # no leader waits longer for the execution of another leader's schema change
RIVAL_COMMITS = 200  # commit times without a conflict after which a rival expires
# The key for which schema changes wait and take turns: the greatest clock. Of the other transactions, only those that
# have read the schema read it. If the key were all clocks that a change writes, row transactions, which read these,
# would wait for the change's next attempt, too.
CHANGES = AccessSet(write_ranges=(clocks_from(CLOCK_LIMIT),))


class Turns:
    """Turns of the leaders that want the same keys: the rivals of one node, and the keys on which it is their turn.

    At the end of a transaction for which several leaders wait, all would begin at once, each would approve its own
    transaction and reject the others, and none would commit. So they take turns. Of the leaders that conflicted
    recently (*rivals*), the one whose name follows the name of the last leader begins at once. Each other leader begins
    some commit times after the leader before it. By then it has received that leader's BEGIN, and waits for the end of
    that transaction. Turns only affect timing: the votes on a transaction do not depend on them.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.change_s = 0.0  # how long the execution of the last schema change here took
        self._rivals: dict[str, float] = {}  # leader -> seconds at which a transaction of it last conflicted with ours
        self._turn_keys: AccessIndex[Txid] = AccessIndex()  # the access sets of the transactions in ``until``
        # For each ended transaction: until when (in seconds) other leaders have their turn on its keys. Empty if this
        # node has no rivals.
        self.until: dict[Txid, float] = {}

    def note_rival(self, leader: str) -> None:
        """Record that one of our requests waits for a transaction of this leader, or was rejected because of one."""
        # Only a peer can be a rival: our own requests wait for each other in the queue, and former members do not lead.
        if leader in self._state.roster.peers:
            self._rivals[leader] = self._state.clock.now.seconds

    def drop_idle_rivals(self, since: float, before: Collection[str]) -> None:
        """Drop the rivals that did not use their turn before ours.

        These are the leaders in ``before`` with which no conflict occurred after ``since``, in seconds.
        """
        self._rivals = {rival: at for rival, at in self._rivals.items() if at > since or rival not in before}

    def start_turns(self, txid: Txid, access_set: AccessSet) -> None:
        """Start the turns on the keys of an ended transaction: its waiting requests go first, new ones wait for our
        turn.
        """
        # Without a recent rival the pause is 0, and no request has to wait.
        pause_ms = self.pause_ms(txid.leader, alters=access_set is CHANGES)
        if pause_ms and txid not in self.until:
            self._turn_keys.add(txid, access_set)
            self.until[txid] = self._state.clock.now.seconds + pause_ms / 1000

    def end_turns(self, access_set: AccessSet) -> None:
        """End the turns on these keys: a transaction on them has begun."""
        if self.until:
            for found in list(self._turn_keys.conflicts(access_set)):
                self._forget(found[0])

    def left_ms(self, access_set: AccessSet) -> tuple[float, str]:
        """Return for how many milliseconds it is other leaders' turn on keys of an access set; 0 if it is not.

        The second value is the leader of the ended transaction that these turns follow.
        """
        now, left_s, leader = self._state.clock.now.seconds, 0.0, ""
        for txid in [txid for txid, until in self.until.items() if until <= now]:
            self._forget(txid)
        for found in self._turn_keys.conflicts(access_set):
            # The longest turn counts: several transactions with these keys may have ended.
            left_s, leader = max((left_s, leader), (self.until[found[0]] - now, found[0].leader))
        return 1000 * left_s, leader

    def pause_ms(self, leader: str, *, alters: bool) -> float:
        """Return the milliseconds until our turn after a transaction of this leader."""
        return self.turn_ms(alters=alters) * len(self.before(leader))

    def turn_ms(self, *, alters: bool) -> float:
        """Return the milliseconds of a turn; with ``alters``, it includes the time to execute a schema change."""
        return 1000 * (TURN_COMMITS * self._state.commit_s + (self.change_s if alters else 0.0))

    def note_change(self, seconds: float) -> None:
        """Record how long the execution of a schema change took: with thousands of tables, it takes long."""
        self.change_s = min(seconds, CHANGE_S_MAX)

    def before(self, leader: str) -> list[str]:
        """Return the leaders whose turns come before ours after a transaction of ``leader``; empty without a rival."""
        rivals, me = self._recent_rivals(), self._state.me
        if not rivals:
            return []
        # Ordered by name, from the last leader on: all nodes compute the same order without a message.
        ring = sorted({me, leader, *rivals})
        place = ring.index(leader) + 1
        ring = ring[place:] + ring[:place]
        return ring[: ring.index(me)]

    def place_after_tie(self, base: Vector) -> int:
        """Return the number of leaders that go before us after a tie: no leader's transaction has reached a quorum.

        The tied transactions have the same base. It decides which leader is first, so that this changes with each
        commit.
        """
        ring = sorted({self._state.me, *self._recent_rivals()})
        return (ring.index(self._state.me) - sum(base.values())) % len(ring)

    def _recent_rivals(self) -> list[str]:
        """Return the reachable rivals with which our transactions conflicted recently."""
        # Measured in commit times and not in seconds, so that rivals expire sooner in a fast cluster.
        since = self._state.clock.now.seconds - RIVAL_COMMITS * self._state.commit_s
        return [rival for rival, at in self._rivals.items() if at >= since and self._is_up(rival)]

    def _forget(self, txid: Txid) -> None:
        self._turn_keys.remove(txid)
        del self.until[txid]

    def _is_up(self, rival: str) -> bool:
        peer = self._state.roster.peers.get(rival)
        return peer is not None and peer.up


GROUP_MAX = 100  # most commands that share one transaction


class WaitQueue:
    """The requests that wait, by the transaction for which they wait."""

    def __init__(
        self,
        in_flight: Mapping[int, InFlight],  # all requests that are under way
        ready: Ready,  # takes the requests that can go on
        # Executes a request again after some milliseconds, in this node's turn after a transaction of the given leader.
        pause: Callable[[InFlight, float, str], None],
        turns: Turns,
    ) -> None:
        self._in_flight, self._ready, self._pause, self._turns = in_flight, ready, pause, turns
        self.waits: dict[Txid, deque[int]] = {}
        self.heads: dict[int, InFlight] = {}  # requests that pause; others that want the same keys line up behind them
        self._head_keys: AccessIndex[int] = AccessIndex()

    def wait(self, inflight: InFlight, other: Txid) -> None:
        """Let a request, and those behind it, wait for the end of a transaction."""
        self.remove_head(inflight.number)
        inflight.contested = True
        self._turns.note_rival(other.leader)
        queue = self.waits.setdefault(other, deque())
        _queue(inflight, queue)
        # Put a request with a reservation first: a request before it would wait for the reservation, and so block it.
        if inflight.goes_first:
            queue.remove(inflight.number)
            queue.appendleft(inflight.number)

    def hold_back(self, inflight: InFlight, reservation: Txid) -> None:
        """Let a request, and those behind it, wait for the end of a reservation."""
        self.remove_head(inflight.number)
        _queue(inflight, self.waits.setdefault(reservation, deque()))

    def unblock_all(self, txid: Txid) -> None:
        """Unblock all requests that wait for a transaction or a reservation; few of them conflict with each other."""
        for number in self.waits.pop(txid, ()):
            inflight = self._in_flight.get(number)
            if inflight is not None and inflight.stage is Stage.WAITING:
                self._ready.add(inflight)

    def remove(self, inflight: InFlight) -> None:
        """Remove a waiting request from its queue."""
        for queue in (*self.waits.values(), *(other.behind for other in self._in_flight.values())):
            if inflight.number in queue:
                queue.remove(inflight.number)

    def pause(self, inflight: InFlight) -> None:
        """Add a request to the pausing requests: later ones that want the same keys line up behind it."""
        if inflight.access_set is not None:
            self.remove_head(inflight.number)
            self.heads[inflight.number] = inflight
            self._head_keys.add(inflight.number, CHANGES if inflight.alters else inflight.access_set)

    def remove_head(self, number: int) -> None:
        """Remove a request from the pausing requests."""
        if self.heads.pop(number, None) is not None:
            self._head_keys.remove(number)

    def head(self, inflight: InFlight, access_set: AccessSet) -> int | None:
        """Return the number of another request that pauses for the same keys, or None."""
        found = next(self._head_keys.conflicts(access_set, inflight.number), None)
        return None if found is None else found[0]

    def line_up(self, inflight: InFlight, head: int) -> None:
        """Put a request, and the requests behind it, behind a request that pauses."""
        _queue(inflight, self.heads[head].behind)

    def became_pending(self, txid: Txid, access_set: AccessSet) -> None:
        """Let the requests that wait for our turn on these keys wait for a transaction that became pending here."""
        self._turns.end_turns(access_set)
        if self.heads:
            for number, _ in list(self._head_keys.conflicts(access_set)):
                # A request that pauses for another reason is not affected.
                if self.heads[number].turn is not None:
                    self.wait(self.heads[number], txid)

    def begun(self, inflight: InFlight, transaction: Transaction) -> None:
        """Let the requests behind a request wait for its new transaction if they conflict; execute the others."""
        waiting, inflight.behind = inflight.behind, deque()
        queue: deque[int] = deque()
        for number in waiting:
            other = self._in_flight.get(number)
            # Skip a request whose deadline has passed, or that was answered.
            if other is None or other.stage is not Stage.WAITING:
                continue
            if other.access_set is not None and conflict(other.access_set, transaction.access_set) is not None:
                queue.append(number)
            else:
                self._ready.add(other)
        if queue:
            self.waits.setdefault(transaction.txid, deque()).extend(queue)

    def group(self, inflight: InFlight) -> tuple[int, ...]:
        """Return the numbers of the requests behind a request that may share its transaction, in order."""
        # No request can be executed on top of a request that asks for a clock, or changes the schema.
        if not inflight.behind or not inflight.can_share:
            return ()
        group: list[int] = []
        commands = {inflight.request.command}
        for number in inflight.behind:
            other = self._in_flight.get(number)
            if (
                other is not None
                and other.stage is Stage.WAITING
                and other.can_share
                # Open transactions (``once``) are already executed and can only be merged with each other; other
                # requests are executed on top of each other.
                and other.once == inflight.once
                # A transaction is certified with all its reads, or with none.
                and other.request.isolation == inflight.request.isolation
                # A command that was sent twice would happen twice in one transaction: its id only prevents that two
                # transactions commit.
                and other.request.command not in commands
            ):
                commands.add(other.request.command)
                group.append(number)
                if len(group) == GROUP_MAX - 1:
                    break
        return tuple(group)

    def joined(self, inflight: InFlight, commands: Collection[str]) -> list[InFlight] | None:
        """Remove and return the requests that share a request's transaction; None if one of them has left its queue."""
        found: dict[str, InFlight] = {}
        for number in self.group(inflight):
            other = self._in_flight[number]
            if other.request.command in commands:
                found[other.request.command] = other
        # The prepared transaction has the effects of all these requests, and cannot be begun without one of them.
        if len(found) < len(commands):
            return None
        taken = {other.number for other in found.values()}
        inflight.behind = deque(number for number in inflight.behind if number not in taken)
        return list(found.values())

    def stay(self, inflight: InFlight, others: Sequence[InFlight], txid: Txid) -> None:
        """Put the requests that shared a transaction behind the first of them, because the transaction was given up."""
        for other in others:
            other.move(Stage.WAITING)
        inflight.behind.extend(other.number for other in others)
        # The requests that waited for the transaction want the same keys: now they wait for this request.
        inflight.behind.extend(self.waits.pop(txid, ()))

    def released(self, txid: Txid, kind: str = ROWS) -> None:
        """Unblock the requests that waited for a transaction, at our turn: it blocks no request here any more.

        Requests that waited for a change of the schema or of the members have only this wait in common, so all go on.
        Of the schema changes among them, only the first goes on.
        """
        queue = self.waits.get(txid)
        if queue is None:
            return
        changes = [number for number in queue if number in self._in_flight and self._in_flight[number].alters]
        for number in changes:
            queue.remove(number)
        if kind != ROWS:
            self.unblock_all(txid)
            self._unblock_first(deque(changes))
            return
        del self.waits[txid]
        # Requests that waited for rows want the same rows: the first goes on, the rest stay behind it.
        self._unblock_first(queue, txid.leader)
        self._unblock_first(deque(changes), txid.leader)

    def change_in_force(self, waited: Sequence[InFlight], leader: str) -> None:
        """Unblock, at our turn, the first of the schema changes that waited for a schema change of ``leader``."""
        for inflight in waited:
            inflight.move(Stage.WAITING)
        self._unblock_first(deque(inflight.number for inflight in waited), leader)

    def unblock_behind(self, inflight: InFlight) -> None:
        """Unblock the requests behind a request."""
        self.remove_head(inflight.number)
        if inflight.behind:
            queue, inflight.behind = inflight.behind, deque()
            self._unblock_first(queue)

    def _unblock_first(self, queue: deque[int], leader: str = "") -> None:
        """Unblock the first request of a queue, at our turn if the queue waited for a transaction of ``leader``."""
        while queue:
            first = self._in_flight.get(queue.popleft())
            if first is None or first.stage is not Stage.WAITING:
                continue
            if first.unchecked_read is not None:  # a strict read, which blocks no other request
                self._ready.add(first)
                continue
            first.behind = queue
            pause_ms = self._turns.pause_ms(leader, alters=first.alters) if leader else 0.0
            if pause_ms and not first.goes_first:
                self._pause(first, pause_ms, leader)
            else:
                self._ready.add(first)
            return


def _queue(inflight: InFlight, queue: deque[int]) -> None:
    """Let a request, and the requests behind it, wait at the end of a queue."""
    inflight.move(Stage.WAITING)
    queue.append(inflight.number)
    queue.extend(inflight.behind)
    inflight.behind.clear()


SIZE_MAX = 64  # most commands in one group
UNDIVIDED = 4  # after a conflict, a group of up to this many commands is divided into single commands


class CommandGroups:
    """Groups of commands that arrive at the same moment and share a transaction, like a group commit.

    A round of votes costs every node the same whether it decides one command or ten. So the commands that arrive while
    the node is busy are executed one on top of the other, as one transaction. The busier a node is, the larger its
    groups are; at a quiet node each command has its own transaction. The commands of a group are unrelated, so none
    should wait long, or be rejected often, because of another: a group that meets a conflict is divided. The size of
    groups adapts like TCP's window: it halves when a group meets a conflict, and grows by one with each commit that
    meets none.

    Args:
        ready: takes the requests that can go on, each with the requests behind it.
    """

    def __init__(self, in_flight: Mapping[int, InFlight], ready: Ready) -> None:
        self._in_flight, self._ready = in_flight, ready
        # The first request of each group, by number, while the others wait behind it.
        self.leading: dict[int, InFlight] = {}
        self.size = SIZE_MAX  # the largest size of the next group

    def start(self, in_flight: list[InFlight]) -> None:
        """Execute requests that arrived together, in groups."""
        while in_flight:
            group, in_flight = in_flight[: self.size], in_flight[self.size :]
            # The driver groups only requests that write. Whether a single request writes is not known before its
            # execution.
            for one in group:
                one.writes = one.only_batched = len(group) > 1
            self._put_behind_first(group)
            self._ready.add(group[0])

    def note_executed(self, inflight: InFlight) -> None:
        """Record that a group's first request is being executed: the requests batched with it wait until that ends."""
        if any(other.only_batched for other in self._behind(inflight)):
            self.leading[inflight.number] = inflight

    def release_others(self, inflight: InFlight) -> None:
        """Let the requests that were only batched with a request go on without it, as a group of their own."""
        if self.leading.pop(inflight.number, None) is not None:
            free = self._take_free(inflight)
            if free:
                self._put_behind_first(free)
                self._ready.add(free[0])

    def divide_ready(self, inflight: InFlight) -> bool:
        """Divide a group whose first request is to be executed again; return whether there was a group."""
        if self.leading.pop(inflight.number, None) is None:
            return False
        first, *others = self.divide([inflight, *self._take_free(inflight)])
        assert first is inflight, "the first part keeps its first request"
        for head in others:
            self._ready.add(head)
        return bool(others)

    def divide(self, group: list[InFlight]) -> list[InFlight]:
        """Divide a group that has met a conflict into several; return the first request of each.

        It is not known which of the commands conflicts. A group of n commands becomes about √n groups, and the commands
        of a group that meets a conflict again go on alone: that takes about 2 √n transactions instead of n, and
        conflicts of others delay no command more than twice. A small group is divided into single commands at once.
        """
        is_last = len(group) <= UNDIVIDED or any(one.was_divided for one in group)
        size = 1 if is_last else math.isqrt(len(group))
        parts = [group[place : place + size] for place in range(0, len(group), size)]
        for part in parts:
            for one in part:
                one.was_divided = True
            self._put_behind_first(part)
        return [part[0] for part in parts]

    def _put_behind_first(self, group: list[InFlight]) -> None:
        first, *others = group
        first.only_batched = False
        for other in others:
            if other.stage is not Stage.WAITING:
                other.move(Stage.WAITING)
        first.behind.extend(other.number for other in others)

    def _take_free(self, inflight: InFlight) -> list[InFlight]:
        """Remove and return the requests behind a request that were only batched with it."""
        behind = self._behind(inflight)
        inflight.behind = deque(other.number for other in behind if not other.only_batched)
        return [other for other in behind if other.only_batched]

    def dissolve_waiting(self) -> None:
        """Dissolve the groups whose first request has to wait: the others need not wait for its obstacle."""
        for number, inflight in list(self.leading.items()):
            if inflight.stage is not Stage.EXECUTING or number not in self._in_flight:
                self.release_others(inflight)

    def grow(self) -> None:
        """Enlarge the next group after the commit of a group, or of a single command without a rival.

        If only commits of groups counted, the size would stay at one for ever once it is one.
        """
        self.size = min(SIZE_MAX, self.size + 1)

    def shrink(self) -> None:
        """Halve the size of the next group after the conflict of a group."""
        self.size = max(1, self.size // 2)

    def _behind(self, inflight: InFlight) -> list[InFlight]:
        found = (self._in_flight.get(number) for number in inflight.behind)
        return [other for other in found if other is not None and other.stage is Stage.WAITING]
