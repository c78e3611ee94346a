"""Real cores on links that can be cut, with real timers."""

from collections import deque

from bedrockish.api.requests import Request, Statement
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.messages import Gossip, Message
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.membership import Member, Membership
from tools.modelcheck.place import Place, new_place

PLAIN = Settings(ask_rest_ms=0)  # every voter gets each BEGIN at once


def add(command: str, key: str, timeout_s: float = 10.0) -> Request:
    return Request(command, (Statement("add", [key, 1]),), timeout_s=timeout_s)


class Net:
    """Real cores on links that can be cut, with real timers and a clock that jumps to the next of them."""

    def __init__(self, voters: str, learners: str = "", settings: Settings = PLAIN) -> None:
        self.seconds = 1.0
        members = {name: Member(name, "", voter=name in voters) for name in voters + learners}
        self.places: dict[str, Place] = {}
        self.flights: deque[tuple[str, str, Message]] = deque()
        self.kept: set[type] = set()  # held messages, neither delivered nor lost
        self.slow: set[str] = set()  # nodes that do not assemble messages in pieces
        self.cuts: set[frozenset[str]] = set()
        self.said: list[tuple[str, str, Message]] = []
        for name in members:
            self.places[name] = new_place(name, Membership(0, members), settings, (), eager=True)
            self.places[name].now, self.places[name].timed = self.now, True
            self.places[name].start()
        for name in members:
            for other in members:
                if other != name:
                    self.play(name, "meet", other)
        self.run(2.0)
        self.said.clear()

    @property
    def now(self) -> Now:
        return Now(self.seconds, 0)

    def play(self, name: str, *event: object) -> None:
        place = self.places[name]
        place.now = self.now
        sent = [(name, peer, message) for peer, message in place.play(event)]
        while place.assembling and name not in self.slow:
            sent += [(name, peer, message) for peer, message in place.play(("assemble",))]
        self.said += [one for one in sent if not isinstance(one[2], Gossip)]
        self.flights += [one for one in sent if frozenset(one[:2]) not in self.cuts]

    def ask(self, name: str, request: Request) -> None:
        place = self.places[name]
        place.script = (*place.script, request)
        self.play(name, "submit")

    def ask_together(self, name: str, *requests: Request) -> None:
        place = self.places[name]
        place.script = (*place.script, *requests)
        self.play(name, "submit all")

    def cut(self, one: str, other: str) -> None:
        self.cuts.add(frozenset((one, other)))
        self.flights = deque(flight for flight in self.flights if frozenset(flight[:2]) not in self.cuts)
        self.play(one, "part", other)
        self.play(other, "part", one)

    def mend(self, one: str, other: str) -> None:
        self.cuts.discard(frozenset((one, other)))
        self.play(one, "meet", other)
        self.play(other, "meet", one)

    def deliver(self) -> None:
        waiting = deque[tuple[str, str, Message]]()
        while self.flights:
            flight = self.flights.popleft()
            if type(flight[2]) in self.kept:
                waiting.append(flight)
            else:
                self.play(flight[1], "receive", flight[0], flight[2])
        self.flights = waiting

    def run(self, seconds: float) -> None:
        end = self.seconds + seconds
        while True:
            self.deliver()
            deadlines = [place.core.deadline() or end for place in self.places.values()]
            if min(deadlines) >= end:
                self.seconds = end
                return
            self.seconds = max(self.seconds, *[min(deadlines)])
            for name, place in self.places.items():
                if (place.core.deadline() or end) <= self.seconds:
                    self.play(name, "wake")

    def told(self, name: str) -> dict[str, str]:
        return self.places[name].told

    def kinds(self, sender: str) -> list[str]:
        return [type(message).__name__ for name, _, message in self.said if name == sender]
