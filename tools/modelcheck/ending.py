"""A fair ending: from some state on no fault happens, time passes, and the cluster must come to rest.

Messages of dead nodes are lost. The running nodes exchange messages, with the core's own timers, until no transaction
is in doubt. Then the dead nodes start again, and all nodes must become equal.
"""

from collections import deque
from itertools import combinations_with_replacement
from random import Random

from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.messages import Message
from tools.modelcheck.facts import broken_law, facts_of
from tools.modelcheck.nodes import CAUGHT
from tools.modelcheck.place import STILL, Place
from tools.sim.world import LawBrokenError

PATIENCE_S = 90.0  # limit of virtual time; most endings take two or three seconds


class Ending:
    """Real nodes, the messages in transit between them, and time.

    Args:
        places: the nodes, including dead ones.
        under_way: the messages in transit as (sender, receiver, message), in the order in which they arrive.
    """

    def __init__(self, places: dict[str, Place], under_way: list[tuple[str, str, Message]]) -> None:
        self.places = places
        self.seconds = STILL.seconds + 0.001
        self.flights = deque(one for one in under_way if places[one[0]].node is not None)
        for place in places.values():
            place.eager = place.timed = True

    @property
    def living(self) -> list[Place]:
        return [place for place in self.places.values() if place.node is not None]

    def run(self) -> None:
        """Run the living nodes until they rest, start the dead ones, and run all nodes until they rest.

        Raises:
            LawBrokenError: the nodes do not come to rest, or a law is broken.
        """
        try:
            dead = [place for place in self.places.values() if place.node is None]
            for place in self.living:
                self._wake(place)
                for other in dead:
                    self._play(place, ("part", other.name))
                while place.taken < len(place.script):
                    self._play(place, ("submit",))
                self._play(place, ("sync",))
                for other in self.living:
                    if other is not place and not place.core.state.roster.peers[other.name].up:
                        self._play(place, ("meet", other.name))
            self._rest("everything ends while some are gone" if dead else "everything ends")
            for place in dead:
                self._start(place)
            if dead:
                self._rest("who comes back becomes equal")
        except CAUGHT as error:
            raise LawBrokenError("no node stops", f"{type(error).__name__} {error}") from error
        self._judge()

    def _wake(self, place: Place) -> None:
        """Start the core's own timers, and give it a random generator for breaking ties."""
        place.now = Now(self.seconds, 0)
        state = place.core.state
        state.set_now(place.now)
        state.draw = Random(ord(place.name)).random
        place.core._beat_in(0)
        for name, subject in sorted(place.timers, key=repr):
            state.timers.move(1, name, subject)
        place.timers.clear()

    def _start(self, place: Place) -> None:
        place.now = Now(self.seconds, 0)
        place.start()
        place.core.state.draw = Random(ord(place.name)).random
        for other in self.living:
            if other is not place:
                self._play(place, ("meet", other.name))
                self._play(other, ("meet", place.name))

    def _play(self, place: Place, event: tuple[object, ...]) -> None:
        place.now = Now(self.seconds, 0)
        self.flights += [(place.name, peer, message) for peer, message in place.play(event)]

    def _rest(self, law: str) -> None:
        """Let time pass until no transaction is in doubt and all running nodes are equal."""
        until = self.seconds + PATIENCE_S
        while True:
            while self.flights:
                sender, receiver, message = self.flights.popleft()
                if self.places[receiver].node is not None:
                    self._play(self.places[receiver], ("receive", sender, message))
            for place in self.living:
                if place.assembling:
                    self._play(place, ("assemble",))
            if self.flights:
                continue
            if self._at_rest():
                return
            if self.seconds > until:
                raise LawBrokenError(law, self._why())
            deadlines = {place.name: place.core.deadline() for place in self.living}
            self.seconds = max(self.seconds, min(one for one in deadlines.values() if one is not None))
            for place in self.living:
                deadline = place.core.deadline()
                if deadline is not None and deadline <= self.seconds:
                    self._play(place, ("wake",))

    def _at_rest(self) -> bool:
        applied = [place.core.state.timelines.applied for place in self.living]
        return all(one == applied[0] for one in applied) and not any(
            len(place.core.state.votes.pending)
            or place.core.coordinator.replies.in_flight
            or place.core.recovery.rounds
            for place in self.living
        )

    def _why(self) -> str:
        told = []
        for place in self.living:
            state = place.core.state
            pending = [f"{one.command} ({one.txid})" for one in state.votes.pending.transactions.values()]
            told.append(f"{place.name} has {dict(state.timelines.applied)} and holds {', '.join(pending) or 'nothing'}")
        return "; ".join(told)

    def _judge(self) -> None:
        facts = [facts_of(place) for place in self.living]
        for one, other in combinations_with_replacement(facts, 2):
            found = broken_law(one, other)
            if found is not None:
                raise LawBrokenError(*found)
        rows = [place.disk.durable.rows for place in self.living]
        if any(one != rows[0] for one in rows):
            raise LawBrokenError("all databases are equal", str(rows))
        for place in self.living:
            for command, words in place.told.items():
                if words[:1].isupper() and command not in self.living[0].disk.durable.commands:
                    raise LawBrokenError("no acknowledged commit is lost", f"{command} was told to be {words}")
