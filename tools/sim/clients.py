"""Clients: each sends one command after the other, keeps a session token, and retries at another node if no
answer comes.

A client records its answers in its history. The final laws use only the histories and the journals.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from bedrockish.api.requests import SERIALIZABLE, SESSION, SNAPSHOT, STALE, STRICT, Answer, Request, Statement, Token
from bedrockish.errors import BedrockishError, LearnerError, OutcomeUnknownError, UnavailableError
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import merge
from tools.sim.dialogs import Dialog

if TYPE_CHECKING:
    from tools.sim.machine import Machine
    from tools.sim.world import World

TRIES_MAX = 6
LAST_TIMEOUT_S = 10.0
PAGE = 7
POLL_S = 0.05


@dataclass
class Call:
    """A command from its client's point of view."""

    client: str
    request: Request
    # ``began`` and ``ended``: the times of the first attempt, and of the result or of the client giving up.
    began: float
    ended: float | None = None
    sent: int = 0  # the number of attempts
    answer: Answer | None = None  # the answer; None if the client never got one
    # The error; with ``unsure``, an attempt may have been committed in spite of an error.
    error: BedrockishError | None = None
    unsure: bool = False
    node: str = ""
    again: bool = False  # whether the client asks again about an old command


@dataclass
class Client:
    """A client with one session."""

    world: "World"
    name: str
    token: Token = field(default_factory=Token)
    calls: list[Call] = field(default_factory=list)
    count: int = 0
    generation: int = 0
    call: Call | None = None
    last: deque[Request] = field(default_factory=deque)
    asked: set[str] = field(default_factory=set)
    talks: set[str] = field(default_factory=set)  # commands that are interactive transactions

    def __post_init__(self) -> None:
        self.luck = Random(f"client {self.name} {self.world.options.seed}")
        self.home = self.luck.choice(sorted(self.world.machines))
        self.only_reads = self.luck.random() < 0.2

    def start(self) -> None:
        """Send the first command after a short time."""
        self.world.after(self.luck.uniform(0, 0.3), self._next)

    @property
    def idle(self) -> bool:
        """Return whether the client has no request under way."""
        return self.call is None and not self.last

    def _next(self) -> None:
        if self.call is not None:
            return
        if not self.world.closing:
            self.luck = Random(f"{self.name}-{self.count} {self.world.options.seed}")
            self.ask(*self._choose())
        elif self.last:
            self._begin(self.last.popleft())

    def finish(self) -> None:
        """Ask again for each command without a known outcome, then read all rows strictly."""
        self.last.extend(call.request for call in self.calls if call.answer is None and call.error is None)
        self.count += 1
        everything = (Statement("scan", ("", "~")),)
        self.last.append(
            Request(f"{self.name}-{self.count}", everything, STRICT, token=self.token, timeout_s=LAST_TIMEOUT_S)
        )
        self._next()

    def ask(self, statements: tuple[Statement, ...], level: str) -> None:
        self.count += 1
        options, command = self.world.options, f"{self.name}-{self.count}"
        if not self.world.happens(command):
            self.world.after(self.luck.expovariate(1000 / options.think_ms), self._next)
            return
        isolation = SNAPSHOT if self.luck.random() < options.snapshots else SERIALIZABLE
        # A node asks a majority before it reads the journal, and an interactive transaction of the model cannot ask.
        if self.luck.random() < options.talks and statements[-1].sql != "journal":
            self.talks.add(command)
        if level == STALE and (isolation == SNAPSHOT or command in self.talks):
            level = SESSION
        token = self.token if level != STALE else Token()
        self._begin(Request(command, statements, level, isolation, token, options.timeout_s))

    def _begin(self, request: Request) -> None:
        again = request.command in self.asked
        self.asked.add(request.command)
        self.call = Call(self.name, request, self.world.now, again=again)
        self.calls.append(self.call)
        self.world.laws.submitted(request)
        if request.command in self.talks:
            dialog = Dialog(self, self.call)
            if again:
                dialog.settle()
            else:
                dialog.begin(self._pick())
            return
        self._send(self.call, self._pick())

    def _pick(self) -> str:
        if self.luck.random() >= self.world.options.wander:
            return self.home
        return self.luck.choice(self.world.alive_names() or [self.home])

    def _send(self, call: Call, node: str) -> None:
        if self.call is not call:
            return
        world = self.world
        self.generation += 1
        generation = self.generation
        call.sent += 1
        call.node = node
        request = call.request
        if world.closing:  # the client waits longer, because it has to learn the outcome now
            request = replace(request, timeout_s=max(request.timeout_s, LAST_TIMEOUT_S))

        def arrive() -> None:
            machine = world.machines[node]
            if not machine.submit(request, lambda answer: self._answered(call, generation, answer)):
                world.after(0.01, lambda: self._failed(call, generation, reached=False))

        def arrive_again() -> None:
            world.machines[node].submit(request, lambda answer: self._answered(call, -1, answer))

        world.trace(self.name, call.request.command, node)
        if self.luck.random() < world.options.doubles:  # the second copy may come while the first waits, or after it
            call.unsure = True  # an error is about only one of the two copies
            world.after(self.luck.uniform(0.0, self.luck.choice((0.005, 0.1, request.timeout_s))), arrive_again)
        world.after(self.luck.expovariate(1000.0 / max(0.1, world.options.delay_ms)), arrive)
        patience = request.timeout_s + self.luck.choice((2.5, 2.5, 2.5, 0.0, -0.7 * request.timeout_s))
        world.after(patience, lambda: self._failed(call, generation, reached=True))

    def _failed(self, call: Call, generation: int, *, reached: bool) -> None:
        """Retry a command after the link to the node broke or the client's timeout expired."""
        if generation != self.generation or self.call is not call:
            return
        call.unsure = call.unsure or reached
        self._again(call)

    def _again(self, call: Call, voters: Collection[str] = ()) -> None:
        """Send a command again, to one of the voters that a learner has named, if any."""
        self.generation += 1
        world = self.world
        if world.short_handed if world.closing else call.sent >= TRIES_MAX:
            self.done(call)
            return
        alive = self.world.alive_names()
        node = self.luck.choice([name for name in alive if name in voters] or alive or [self.home])
        self.home = node if voters else self.home
        self.world.after(self.luck.uniform(0.01, 0.3), lambda: self._send(call, node))

    def _answered(self, call: Call, generation: int, answer: Answer | BedrockishError) -> None:
        if isinstance(answer, Answer) and call.answer is not None:
            self.world.laws.answered(call.request.command, answer)
        if generation != self.generation or self.call is not call:
            return
        if isinstance(answer, Answer):
            call.answer = answer
            if call.request.read != STALE or answer.place is not None:
                vector = merge(self.token.vector, answer.token.vector)
                self.token = Token(vector, max(self.token.clock, answer.token.clock))
            self.done(call)
        elif isinstance(answer, OutcomeUnknownError):
            call.unsure = True
            self._again(call)
        elif isinstance(answer, LearnerError):
            self._again(call, answer.details["voters"])
        elif isinstance(answer, UnavailableError) and (call.unsure or self.world.closing):
            self._again(call)
        else:
            call.error = answer
            self.done(call)

    def done(self, call: Call) -> None:
        """Record the end of a command, with or without a known outcome, and plan the next one."""
        self.generation += 1
        call.ended = self.world.now
        self.call = None
        self.world.counts["answers" if call.answer else "errors" if call.error else "unknown"] += 1
        self.world.laws.finished(call)
        self.world.after(self.luck.expovariate(1000 / self.world.options.think_ms), self._next)

    # -- the commands ----------------------------------------------------------------------------------------------

    def _key(self) -> str:
        options = self.world.options
        if self.luck.random() < options.hot:
            return f"k{self.luck.randrange(2):02}"
        return f"k{self.luck.randrange(options.keys):02}"

    def _pair(self) -> tuple[str, str]:
        low, high = sorted((self._key(), self._key()))
        return low, high + "~"

    def _choose(self) -> tuple[tuple[Statement, ...], str]:
        luck = self.luck
        if self.world.options.alter and luck.random() < self.world.options.alter:
            return (Statement("alter", ()),), SESSION
        level = luck.choice((STALE, SESSION, SESSION, STRICT, STRICT))
        if self.world.options.stamps and luck.random() < self.world.options.stamps / 2:
            return (Statement("clock", ()),), SESSION
        if self.only_reads or luck.random() < 0.25:
            if self.world.options.journal and luck.random() < self.world.options.journal:
                row = (Statement("read", (self._key(),)),) if luck.random() < 0.5 else ()
                return (*row, Statement("journal", ())), level
            if luck.random() < 0.4:
                return (Statement("scan", self._pair()),), level
            keys = sorted({self._key() for _ in range(luck.randint(1, 3))})
            return (Statement("read", keys),), level
        if self.world.options.looks and luck.random() < self.world.options.looks:
            own = f"own {self.name} {luck.randrange(4)}"
            return (Statement("scan", ("a", "b")), Statement("write", (own, f"{self.name}-{self.count}"))), level
        return tuple(self._write() for _ in range(luck.choice((1, 1, 1, 2, 3)))), level

    def _write(self) -> Statement:
        luck = self.luck
        value: Any = f"{self.name}-{self.count}"
        options = self.world.options
        if options.stamps and luck.random() < options.stamps:
            return Statement("stamp", (self._key(),))
        if options.sweeps and luck.random() < options.sweeps:
            return Statement("sweep", (*luck.choice((self._pair(), ("k", "l"))), luck.randint(1, 9)))
        if options.large and luck.random() < options.large:
            return Statement("write", (f"own {self.name} {luck.randrange(4)}", f"{value} " * luck.randint(50, 400)))
        match luck.randrange(10):
            case 9:
                return Statement("stamp", (self._key(),))
            case 8:
                return Statement("note", (value,))
            case 0 | 1:
                return Statement("add", (self._key(), luck.randint(1, 9)))
            case 2:
                return Statement("write", (self._key(), luck.randint(0, 99)))
            case 3:
                return Statement("append", (f"l{luck.randrange(3)}", value))
            case 4:
                source, target = self._key(), self._key()
                return Statement("move", (source, target if target != source else source + "b", luck.randint(1, 5)))
            case 5:
                return Statement("total", (*self._pair(), f"t{luck.randrange(3)}"))
            case 6:
                return Statement("delete", (self._key(),))
            case _:
                return Statement("write", (f"own {self.name} {luck.randrange(4)}", value))


class FeedReader:
    """A program that follows the change feed page by page, each page from any node, and reads each transaction once.

    Its cursor is the last transaction that it has read.
    """

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.name = world, f"reader {number}"
        self.luck = Random(f"{self.name} {world.options.seed}")
        self.seen: list[Txid] = []  # the transactions in the order in which they were read

    def start(self) -> None:
        """Begin to read."""
        self.world.after(self.luck.uniform(0.0, 0.2), self._ask)

    def _ask(self) -> None:
        self.world.after(POLL_S * self.luck.uniform(0.5, 3.0), self._ask)
        running = [machine for machine in self.world.machines.values() if machine.running]
        if running:
            self.read(self.luck.choice(running))

    def read(self, machine: "Machine") -> None:
        """Read the next page from one node: the transactions after the cursor, up to the node's safe time."""
        assert machine.node is not None
        after = self.seen[-1] if self.seen else Txid(0, "")
        safe = machine.node.state.clock.safe
        found = sorted(txid for txid in machine.disk.seen.txids if txid > after and txid.clock <= safe)[:PAGE]
        machine.disk.then(lambda: self._take(after, found))

    def _take(self, after: Txid, found: list[Txid]) -> None:
        if (self.seen[-1] if self.seen else Txid(0, "")) == after:  # else a page of another node came first
            self.seen.extend(found)
            self.world.counts["fed"] += len(found)
