"""The effects of a step, messages included, in the order for the driver; and the timers that call the node again."""

import heapq
from enum import StrEnum

from bedrockish.core.protocol.effects import Activate, Apply, Early, Effect, Send
from bedrockish.core.protocol.messages import SINCE, Accept, Begin, Check, Commit, Entries, Message, Promise, Recover
from bedrockish.core.protocol.pieces import Cut
from bedrockish.core.state.clock import Clock
from bedrockish.core.state.pieces import Pieces
from bedrockish.core.state.roster import Roster

MAY_BE_LARGE = frozenset({Begin, Commit, Recover, Promise, Accept, Entries, Check})


class Outbox:
    """The effects of one step, in the order in which they must happen."""

    def __init__(self, roster: Roster, clock: Clock, pieces: Pieces) -> None:
        self.roster, self.clock, self.pieces = roster, clock, pieces
        self.effects: list[Effect] = []

    def drain(self) -> list[Effect]:
        """Return all effects since the last call."""
        effects, self.effects = self.effects, []
        return effects

    def emit(self, effect: Effect) -> None:
        """Add an effect to those of the step."""
        self.effects.append(effect)

    def emit_first(self, effect: Effect) -> None:
        """Add an effect before all others of the step, because the others depend on it."""
        self.effects.insert(0, effect)

    @property
    def is_applying(self) -> bool:
        """Whether this step applies an entry or a schema change: the tables do not have it yet."""
        for effect in self.effects:  # noqa: SIM110  a generator costs more than the loop
            if isinstance(effect, Apply | Activate):
                return True
        return False

    def send(self, peer: str, message: Message, early: Early | None = None) -> None:
        """Send a message to one peer; ``early`` is that of the effect ``Send``."""
        kind = message.__class__
        # A member below the message's level cannot read it, and would end the link: no other message would arrive.
        assert kind not in SINCE or SINCE[kind] <= self.roster.level, (
            f"level {self.roster.level} does not read {kind.__name__}"
        )
        sent = self.to_send(peer, message)
        # A large message names pieces, which must be durable before it leaves, so it is not sent early.
        self.effects.append(Send(peer, sent, early if sent is message else None))

    def send_voters(self, message: Message, early: Early | None = None) -> None:
        """Send a message to every other voter; ``early`` is that of the effect ``Send``."""
        for node in self.roster.voters:
            if node != self.roster.me:
                self.send(node, message, early)

    def send_all(self, message: Message) -> None:
        """Send a message to every other member."""
        for node in self.roster.peers:
            self.send(node, message)

    # -- large messages --------------------------------------------------------------------------------------------

    def to_send(self, peer: str, message: Message, cut: Cut | None = None) -> Message:
        """Return the message to send: itself, or its parts if it is large; ``cut`` is the result of ``cut_ahead``."""
        # Test the class first: most classes of messages are always small, and need not be measured.
        if message.__class__ in MAY_BE_LARGE and self._is_cut(message):
            return self.pieces.to_send(peer, message, self.clock.now.seconds, cut)
        return message

    def cut_ahead(self, message: Message) -> Cut | None:
        """Return the cut of a message that is sent in parts; may be called in another thread, before ``to_send``."""
        return self.pieces.cut(message) if message.__class__ in MAY_BE_LARGE and self._is_cut(message) else None

    def _is_cut(self, message: Message) -> bool:
        return _size(message) > self.pieces.settings.inline_bytes


def _size(message: Message) -> int:
    """Return an estimate of a message's length; for small messages it need not be exact."""
    match message:
        case Commit():
            return 0 if message.body is None else len(message.body)
        case Begin():
            return len(message.body)
        case Promise():
            return sum(map(len, message.blockers))
        case Entries():
            return sum(len(label) + len(body) + 48 for _, label, body in message.entries)
        case Check():
            return len(message.access_set)
        case _:
            return len(getattr(message, "body", b"") or b"")


class Timer(StrEnum):
    """The kinds of timers; a comment names the subject of a timer that has one."""

    HEARTBEAT = "heartbeat"
    VOTES = "votes"  # no subject: the next step judges deferred BEGINs
    FETCH = "fetch"
    REQUEST_AGAIN = "request_again"  # the number of a request whose pause is over
    REQUEST_DEADLINE = "request_deadline"  # the number of a request whose time is over
    BEGIN_REST = "begin_rest"  # the transaction that the first voters have not approved yet
    ASK_REST = "ask_rest"  # the number of a question that the first voters have not answered yet
    ASK_ENDS = "ask_ends"  # the number of a request that waits for the ends of transactions
    RESERVATION = "reservation"
    SCHEMA_DUE = "schema_due"  # the schema change
    RECOVER_AGAIN = "recover_again"  # the transaction


DROPPED_MAX = 8  # the heap is not made again for this many dropped timers or fewer


class Timers:
    """The calls to make later, by the seconds at which they are due."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._timers: list[tuple[float, int, Timer, object]] = []
        self._dropped: set[tuple[Timer, object]] = set()
        self._moved: dict[tuple[Timer, object], int] = {}  # by moved timer, the count of its valid entry in the heap
        self._timer_count = 0

    def set(self, after_ms: float, timer: Timer, subject: object = None) -> None:
        """Schedule a call for ``subject``."""
        self._timer_count += 1
        due = self.clock.now.seconds + after_ms / 1000
        # The count keeps timers that are due at the same time in the order in which they were set, as a replay needs.
        heapq.heappush(self._timers, (due, self._timer_count, timer, subject))

    def move(self, after_ms: float, timer: Timer, subject: object) -> None:
        """Schedule a call for ``subject``, and drop an earlier timer of this kind for the same subject."""
        self.set(after_ms, timer, subject)
        self._moved[timer, subject] = self._timer_count

    def drop(self, timer: Timer, subject: object) -> None:
        """Drop the timer for a subject; the caller has set it only once, and does not set it again."""
        self._dropped.add((timer, subject))
        # A timer inside the heap can only be removed by making the heap again. If that is done when half of the timers
        # are dropped, a drop costs on average as little as a set.
        if len(self._dropped) > DROPPED_MAX and 2 * len(self._dropped) > len(self._timers):
            self._timers = [one for one in self._timers if one[2:] not in self._dropped]
            heapq.heapify(self._timers)
            self._dropped.clear()

    def due(self) -> list[tuple[Timer, object]]:
        """Remove and return the due timers, the earliest first."""
        due = []
        while self._timers and self._timers[0][0] <= self.clock.now.seconds:
            _, count, name, subject = heapq.heappop(self._timers)
            timer = (name, subject)
            if timer in self._dropped:
                self._dropped.remove(timer)
            elif self._moved.get(timer, count) == count:
                self._moved.pop(timer, None)
                due.append(timer)
        return due

    def deadline(self) -> float | None:
        """Return the time, in seconds, of the next timer; None if no timer is set.

        Dropped and moved timers are removed first: waking for one would cost a turn of the loop for nothing.
        """
        timers, dropped, moved = self._timers, self._dropped, self._moved
        while timers and (dropped or moved):
            _, count, name, subject = timers[0]
            timer = (name, subject)
            if timer in dropped:
                dropped.remove(timer)
            elif moved.get(timer, count) == count:
                break
            heapq.heappop(timers)
        return timers[0][0] if timers else None
