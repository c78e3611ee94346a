"""The clients' workload: small transactions on a few lists, some of them hot, and a record of the
answers.

Lists have three forms, which conflict in different ways: one growing text in one row; one row for each value, in a
range that every append reads to its end; and such rows found by a join, through a row that names their box. Some
appends make a trigger move all rows to another box.
"""

import random
import uuid
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import trio

from bedrockish import open_client
from bedrockish.api.requests import Rows
from bedrockish.client.transaction import Transaction
from bedrockish.client.trio_client import Client
from bedrockish.errors import BedrockishError, ConflictError, OutcomeUnknownError, UnavailableError
from tools.chaos.cluster import ProxiedCluster
from tools.chaos.programs import Conversation, Program, ProgramProcess
from tools.checker.history import Operation, Step

SCHEMA = (
    "CREATE TABLE texts(key TEXT PRIMARY KEY, items TEXT NOT NULL)",
    "CREATE TABLE items(key TEXT, place INTEGER, value INTEGER NOT NULL, PRIMARY KEY (key, place))",
    "CREATE TABLE owners(id INTEGER PRIMARY KEY, name TEXT UNIQUE, box INTEGER NOT NULL, added INTEGER)",
    "CREATE TABLE parts(box INTEGER, place INTEGER, value INTEGER NOT NULL, PRIMARY KEY (box, place))",
    "CREATE TRIGGER moved AFTER UPDATE OF box ON owners BEGIN "
    "INSERT INTO parts(box, place, value) SELECT new.box, place, value FROM parts WHERE box = old.box; "
    "INSERT INTO parts(box, place, value) "
    "SELECT new.box, coalesce(max(place), 0) + 1, new.added FROM parts WHERE box = new.box; END",
    "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999) "
    "INSERT INTO owners(id, name, box, added) SELECT i + 1, 'j' || i, (i + 1) * 1000, NULL FROM n",
)
APPEND = {
    "t": (
        "INSERT INTO texts(key, items) VALUES (?1, ?2) "
        "ON CONFLICT (key) DO UPDATE SET items = items || ',' || excluded.items"
    ),
    "i": "INSERT INTO items(key, place, value) SELECT ?1, coalesce(max(place), 0) + 1, ?2 FROM items WHERE key = ?1",
    "j": (
        "INSERT INTO parts(box, place, value) "
        "SELECT o.box, coalesce((SELECT max(place) FROM parts p WHERE p.box = o.box), 0) + 1, ?2 "
        "FROM owners o WHERE o.name = ?1"
    ),
}
READ = {
    "t": "SELECT items FROM texts WHERE key = ?",
    "i": "SELECT value FROM items WHERE key = ? ORDER BY place",
    "j": "SELECT p.value FROM owners o JOIN parts p ON p.box = o.box WHERE o.name = ? ORDER BY p.place",
}
MOVE = "UPDATE owners SET box = box + 1, added = ?2 WHERE name = ?1"  # another way to append to a list of the sort j
MOVES = 4  # one of this many appends to lists of the sort j is a MOVE
HOT, COLD = 1, 4  # keys of each sort at a time; half of all steps go to the hot ones
WRITES_MAX = 40  # writes to one key before a new key replaces it: ever-growing lists are slow to read
CALL_S = 5.0
THINK_S = 0.03  # the longest pause between two steps of a conversation
MOVE_AFTER = 25  # number of operations after which a session continues at another node

Caller = Client | Program
Answer = tuple[str, list[Step], str]  # outcome, the steps with their results, a note


class Keys:
    """The keys in use; the first letter of a key is its sort, as in ``READ``."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._active: dict[str, list[str]] = {}
        self._writes: dict[str, int] = {}
        for sort in APPEND:
            self._active[sort] = [self._new(sort) for _ in range(HOT + COLD)]

    def _new(self, sort: str) -> str:
        key = f"{sort}{sum(one[0] == sort for one in self.all)}"
        self.all.append(key)
        self._writes[key] = 0
        return key

    def draw(self, luck: random.Random) -> str:
        """Choose a key, half of the time the hot one of its sort."""
        active = self._active[luck.choice("".join(APPEND))]
        return active[0] if luck.random() < 0.5 else luck.choice(active[HOT:])

    def wrote(self, key: str) -> None:
        """Count a write of a key, and replace the key after ``WRITES_MAX`` writes."""
        self._writes[key] += 1
        active = self._active[key[0]]
        if self._writes[key] >= WRITES_MAX and key in active:
            active[active.index(key)] = self._new(key[0])


@dataclass
class Workload:
    cluster: ProxiedCluster  # the cluster
    seed: int  # the seed of all choices of the clients; the results also depend on timing
    clients: int = 3  # the number of clients of each node
    by_file: bool = False  # whether the clients are programs, each on the file of its node
    programs: list[ProgramProcess] = field(default_factory=list)  # the programs
    history: list[Operation] = field(default_factory=list)  # their operations, in the order in which they ended
    errors: dict[str, int] = field(default_factory=dict)  # the number of answers with each error code
    strange: list[str] = field(default_factory=list)  # errors that no fault explains
    keys: Keys = field(default_factory=Keys)
    stopping: bool = False
    _values: int = 0

    async def create(self) -> None:
        async with open_client(self.cluster.url()) as client:
            for sql in SCHEMA:
                await client.execute(sql)

    async def run(self) -> None:
        """Run the clients until ``stopping``; each finishes its operation."""
        async with trio.open_nursery() as nursery:
            for number in range(self.clients * len(self.cluster.nodes)):
                nursery.start_soon(self._client, number)

    async def _client(self, number: int) -> None:
        luck = random.Random(f"{self.seed} {number}")
        home = number % len(self.cluster.nodes)
        settled = luck.random() < 0.4  # some clients keep their node, even while it is cut off
        token: bytes | None = None
        program = Program(self.cluster.dark) if self.by_file else None
        if program is not None:
            self.programs.append(program)
        try:
            while not self.stopping:
                try:
                    async with self._at(program, home % len(self.cluster.nodes), settled, token) as client:
                        for _ in range(MOVE_AFTER):
                            if self.stopping:
                                return
                            await self._operate(client, f"c{number}", luck)
                            token = client.token
                except BedrockishError:
                    await trio.sleep(0.2)  # the node refuses connections: the operation was not sent
                if not settled:
                    home = luck.randrange(len(self.cluster.nodes))
        finally:
            if program is not None:
                program.end()

    def _at(
        self, program: Program | None, home: int, settled: bool, token: bytes | None
    ) -> AbstractAsyncContextManager[Caller]:
        """Return a session with a node: of a client, or of a program on the node's file."""
        url = self.cluster.url(home, only=settled, options="/?connect_timeout=2")
        return open_client(url, token=token) if program is None else program.at(url, self.cluster.nodes[home].database)

    async def _operate(self, client: Caller, name: str, luck: random.Random) -> None:
        """Run one transaction, and record its outcome."""
        level = luck.choices(["update", "strict", "session"], [5, 2, 2])[0]
        writes = 0.55 if level == "update" else 0.0
        steps = [self._draw_step(luck, luck.random() < writes) for _ in range(luck.randint(1, 4))]
        if level == "update" and not any(step.value for step in steps):
            steps.append(self._draw_step(luck, True))
        begin = trio.current_time()
        do = self._converse if luck.random() < 0.35 else self._send
        outcome, steps, note = await do(client, level, steps, luck)
        if level == "update" or outcome == "ok":
            self._record(name, level, begin, outcome, steps, note)

    async def _send(self, client: Caller, level: str, steps: list[Step], luck: random.Random) -> Answer:
        """Send all steps as one request; if the answer is lost, give up, send it again, or settle its command."""
        command, way, lost = uuid.uuid4().hex, luck.choice(["leave", "again", "settle"]), False
        statements = [_statement(step) for step in steps]
        read = "session" if level == "update" else level
        while True:
            try:
                rows = await client.transact(statements, read=read, timeout=CALL_S, command=command)
            except OutcomeUnknownError as error:
                if way == "settle":
                    return await self._settle(client, steps, command, statements)
                if way == "leave":
                    return self._failed("unknown", steps, command, error)
                way, lost = "leave", True
            except BedrockishError as error:
                # The error concerns only the second attempt: the first, whose answer was lost, may still have happened.
                return self._failed("unknown" if lost else "fail", steps, command, error)
            else:
                return "ok", _all_seen(steps, rows), f"{_place(rows[0])} {command}"

    async def _converse(self, client: Caller, level: str, steps: list[Step], luck: random.Random) -> Answer:
        """Do the steps in an open transaction; if the answer to COMMIT is lost, some clients settle the transaction."""
        seen = list(steps)
        transaction: Transaction | Conversation | None = None
        try:
            transaction = await client.begin(read="session" if level == "update" else level, timeout=CALL_S)
            for place, step in enumerate(steps):
                sql, params = _statement(step)
                seen[place] = _seen(step, await transaction.execute(sql, params))
                await trio.sleep(luck.random() * THINK_S)
            if level == "update" and luck.random() < 0.05:
                await transaction.rollback()
                return "fail", steps, f"rolled back by its client {transaction.command}"
            done = await transaction.commit()
        except OutcomeUnknownError as error:
            assert transaction is not None
            if luck.random() < 0.3:
                return self._failed("unknown", seen, transaction.command, error)
        except BedrockishError as error:
            if transaction is not None:
                await transaction.rollback()
            return self._failed("fail", seen, "in conversation", error)
        else:
            return "ok", seen, f"{_place(done)} {transaction.command} in conversation"
        return await self._settle(client, steps, transaction.command, seen=seen)

    async def _settle(
        self,
        client: Caller,
        steps: list[Step],
        command: str,
        statements: list[tuple[str, list[str | int]]] | None = None,
        seen: list[Step] | None = None,
    ) -> Answer:
        """Settle a command: return whether it has happened; if not, it never will.

        The request of a command that has happened is sent again, for its answer.
        """
        try:
            happened = await client.settle(command, timeout=CALL_S)
            if happened and statements is not None:
                rows = await client.transact(statements, read="session", timeout=CALL_S, command=command)
                seen = _all_seen(steps, rows)
        except BedrockishError as error:
            return self._failed("unknown", steps, command, error)
        word = "settled, happened" if happened else "settled, will never happen"
        self.errors[word] = self.errors.get(word, 0) + 1
        if not happened:
            return "fail", steps, f"{word} {command}"
        if seen is None:  # the command happened, but its reads are unknown
            return "unknown", steps, f"{word} {command}"
        return "ok", seen, f"{word} {command}"

    def _failed(self, outcome: str, steps: list[Step], command: str, error: BedrockishError) -> Answer:
        self.errors[error.code] = self.errors.get(error.code, 0) + 1
        if not isinstance(error, ConflictError | UnavailableError | OutcomeUnknownError):
            self.strange.append(f"a client was told {error.code}: {error.message}")
        return outcome, steps, f"{error.code} {command}"

    def _record(self, name: str, level: str, begin: float, outcome: str, steps: Iterable[Step], note: str) -> None:
        end = trio.current_time()
        self.history.append(Operation(len(self.history) + 1, name, level, begin, end, outcome, tuple(steps), note))

    def _draw_step(self, luck: random.Random, writes: bool) -> Step:
        key = self.keys.draw(luck)
        if not writes:
            return Step("list", key)
        self._values += 1
        self.keys.wrote(key)
        return Step("append", key, self._values)


def _statement(step: Step) -> tuple[str, list[str | int]]:
    if step.value is None:
        return READ[step.key[0]], [step.key]
    moves = step.key[0] == "j" and step.value % MOVES == 0
    return MOVE if moves else APPEND[step.key[0]], [step.key, step.value]


def _place(rows: Rows) -> str:
    return "only read" if rows.place is None else f"{rows.place[0]}{rows.place[1]}"


def _all_seen(steps: list[Step], rows: list[Rows]) -> list[Step]:
    return [_seen(step, result) for step, result in zip(steps, rows, strict=True)]


def _seen(step: Step, rows: Rows) -> Step:
    return step if step.value is not None else read_step(step.key, rows.rows)


def read_step(key: str, rows: list[tuple[int | str, ...]]) -> Step:
    """Return the step that the rows of a statement in ``READ`` show for a key."""
    texts = [text for (found,) in rows for text in str(found).split(",")]
    return Step("list", key, values=tuple(map(int, texts)))
