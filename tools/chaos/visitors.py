"""Clients that stay for one visit: they open a connection, do one thing with it, and leave, often before it is done.

The workload's clients keep their connections and finish their transactions. Visitors hold what a node must release by
itself: streams that are not read to the end, snapshots, TEMP tables, transactions without COMMIT.

The visitors of a node are threads of one process. Each visit goes to this node's file, or to any node by URL or HTTP.
Transfers keep the sum of all pairs at zero, so every read of all pairs shows whether its rows are of one moment; so do
the other statements of ``CHECKS``. A counter and its log show whether acknowledged visits are lost, or happen twice.
The process records its visits in a file line by line, which outlives it.
"""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import apsw
import trio

import bedrockish
import bedrockish.dbapi
from bedrockish.client.blocking import Connection
from bedrockish.client.trio_client import Client
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    OutcomeUnknownError,
    TemporaryLostError,
    UnavailableError,
    unpack_error,
)
from tools.chaos.programs import ProgramProcess
from tools.cluster import ROOT, clean_environment, unwrap

PAIRS = 200  # rows of the table of pairs
CUSTOMERS, LINES, PAGES = 20, 3, 50  # numbers of customers, of lines of an order, and of pages
WORDS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak")
VISITORS = 3  # threads of each process
PAUSE_S = 0.05  # the longest pause between two visits of a thread, and between two steps of a visit
RESTART_S = 0.5  # how long a killed process stays away
CALL_S = 5.0
SCHEMA = (
    "CREATE TABLE pairs(id INTEGER PRIMARY KEY, n INTEGER NOT NULL)",
    f"WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < {PAIRS}) "
    "INSERT INTO pairs SELECT n, 0 FROM i",
    "CREATE TABLE visits(id INTEGER PRIMARY KEY AUTOINCREMENT, who TEXT NOT NULL, number INTEGER NOT NULL)",
    "CREATE TABLE visitors(who TEXT PRIMARY KEY, visits INTEGER NOT NULL)",
    # Orders of customers: triggers keep the totals, and foreign keys delete orders and lines.
    "CREATE TABLE customers(id INTEGER PRIMARY KEY, total INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE orders(id INTEGER PRIMARY KEY, amount INTEGER NOT NULL, tag TEXT NOT NULL UNIQUE, "
    "customer INTEGER NOT NULL REFERENCES customers ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE lines(tag TEXT REFERENCES orders(tag) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED, "
    "number INTEGER, PRIMARY KEY (tag, number)) WITHOUT ROWID",
    "CREATE TRIGGER ordered AFTER INSERT ON orders BEGIN "
    "UPDATE customers SET total = total + new.amount WHERE id = new.customer; END",
    "CREATE TRIGGER cancelled AFTER DELETE ON orders BEGIN "
    "UPDATE customers SET total = total - old.amount WHERE id = old.customer; END",
    "CREATE TRIGGER changed AFTER UPDATE OF amount ON orders BEGIN "
    "UPDATE customers SET total = total - old.amount + new.amount WHERE id = new.customer; END",
    f"INSERT INTO customers(id) SELECT id FROM pairs WHERE id <= {CUSTOMERS}",
    # Texts, and an index of their words that each node keeps by itself.
    "CREATE TABLE pages(id INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE VIRTUAL TABLE words USING fts5(body, content='pages', content_rowid='id')",
)
# Each finds the rows of a state that no moment of the database contains.
CHECKS = {
    "pairs": f"SELECT * FROM (SELECT count(*) AS c, sum(n) AS s FROM pairs) WHERE c <> {PAIRS} OR s <> 0",
    "totals": "SELECT c.id FROM customers AS c LEFT JOIN orders AS o ON o.customer = c.id "
    "GROUP BY c.id HAVING c.total <> coalesce(sum(o.amount), 0)",
    "orphans": "SELECT tag FROM orders WHERE customer NOT IN (SELECT id FROM customers) "
    "UNION ALL SELECT tag FROM lines WHERE tag NOT IN (SELECT tag FROM orders)",
    "lines": "SELECT o.tag FROM orders AS o LEFT JOIN lines AS l ON l.tag = o.tag "
    f"GROUP BY o.tag HAVING count(l.number) <> {LINES}",
    "visits": "SELECT who FROM (SELECT who, count(*) AS c FROM visits GROUP BY who) JOIN visitors USING (who) "
    "WHERE c <> visits",
    **{
        f"word {word}": f"WITH found AS (SELECT rowid AS id FROM words WHERE words MATCH '{word}'), "
        f"there AS (SELECT id FROM pages WHERE ' ' || body || ' ' GLOB '* {word} *') "
        "SELECT * FROM (SELECT id FROM found EXCEPT SELECT id FROM there) "
        "UNION ALL SELECT * FROM (SELECT id FROM there EXCEPT SELECT id FROM found)"
        for word in WORDS
    },
}
COUNT = (
    "INSERT INTO visits(who, number) VALUES (?1, ?2)",
    "INSERT INTO visitors(who, visits) VALUES (?1, 1) ON CONFLICT (who) DO UPDATE SET visits = visits + 1",
)
ALL_PAIRS = "SELECT id, n FROM pairs ORDER BY id"
STREAMED = "SELECT id, n, hex(zeroblob(5000)) FROM pairs ORDER BY id"  # two megabytes: more than one batch of rows
SUM = "SELECT sum(n) FROM pairs"
ADD = "UPDATE pairs SET n = n + ? WHERE id = ?"


class WrongReadError(Exception):
    """Raised when a visit reads what no moment of the database contains."""


class Visitors(ProgramProcess):
    """The process of a node's visitors, which is started again after it was killed."""

    def __init__(self, database: Path, urls: list[str], record: Path, seed: int, dark: set[Path]) -> None:
        super().__init__(database)
        self.record = record  # the file with a line for each event of the visits
        self._file, self._urls, self._seed, self._dark = database, urls, seed, dark

    async def run(self) -> None:
        """Keep the process running until cancelled."""
        try:
            while True:
                if not self.is_running and self._file not in self._dark:  # nothing runs on a machine without power
                    self._seed += 1000
                    words = [str(self.record), str(self._seed), str(self._file), *self._urls]
                    self._process = subprocess.Popen(  # noqa: ASYNC220  it returns at once
                        [sys.executable, "-m", "tools.chaos.visitors", *words], cwd=ROOT, env=clean_environment()
                    )
                await trio.sleep(RESTART_S)
        finally:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)  # at any moment of a visit: the nodes find that their clients are gone


@dataclass
class Events:
    counts: Counter[str] = field(default_factory=Counter)  # the visits by kind, and the errors by code
    # Visitor and number of each counted visit that may have happened, and of those whose COMMIT was answered.
    sent: set[tuple[str, int]] = field(default_factory=set)
    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)  # wrong reads, and errors that no fault explains


def read_events(records: list[Path]) -> Events:
    """Return the records in the files of all visitors; a line that SIGKILL has cut short is left out."""
    events = Events()
    for path in records:
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        for line in lines[:-1]:
            try:
                kind, *values = json.loads(line)
            except ValueError:
                continue  # the rest of a line that was cut short, and the next line
            match kind:
                case "sent":
                    events.sent.add((values[0], values[1]))
                case "acknowledged":
                    events.acknowledged.add((values[0], values[1]))
                case "refused":
                    events.sent.discard((values[0], values[1]))
                case "wrong":
                    events.wrong.append(values[0])
                case _:
                    events.counts[f"{kind}: {values[0]}"] += 1
    return events


def check_file(database: Path) -> list[str]:
    """Return the states in a stopped node's file that no moment contains."""
    with closing(apsw.Connection(str(database))) as db:
        found = [(name, db.execute(sql).fetchall()) for name, sql in CHECKS.items()]
        return [f"a wrong state ({name}): {rows[:5]}" for name, rows in found if rows]


def judge(events: Events, visits: list[tuple[str, int]], totals: dict[str, int]) -> list[str]:
    """Return the contradictions between a file's tables and the records of the visits.

    Args:
        visits: visitor and number of each row in the log of visits.
        totals: the counter of each visitor.
    """
    wrong = list(events.wrong)
    once = set(visits)
    if len(once) < len(visits):
        wrong.append(f"visits: {len(visits) - len(once)} are in the log twice")
    if lost := events.acknowledged - once:
        wrong.append(f"visits: {len(lost)} were acknowledged and are lost, for example {sorted(lost)[:3]}")
    if more := once - events.sent:
        wrong.append(f"visits: {len(more)} are in the log although they were refused, for example {sorted(more)[:3]}")
    if dict(Counter(who for who, _ in visits)) != totals:
        wrong.append("visits: the counters differ from the log")
    return wrong


class _Visitor:
    def __init__(self, name: str, file: str, urls: list[str], record: IO[str], luck: random.Random) -> None:
        self._name, self._file, self._record, self._luck = name, file, record, luck
        self._urls = [url for url in urls if not url.isdigit()]
        self._https = [int(port) for port in urls if port.isdigit()]  # the nodes' ports for HTTP
        self._number = 0
        self._kinds: tuple[Callable[[], None], ...] = (
            self._stream,
            self._count,
            self._count,
            self._transfer,
            self._transfer,
            self._leave,
            self._temporary,
            self._snapshot,
            self._savepoint,
            self._strict,
            self._order,
            self._order,
            self._write_page,
            self._check_state,
            self._check_state,
            self._attach,
            self._cancel,
        )

    def run(self) -> None:
        """Visit until the process is killed."""
        while True:
            visit = self._luck.choice(self._kinds)
            kind = visit.__name__.strip("_")
            try:
                visit()
                self._write("visits", kind)
            except WrongReadError as error:
                self._write("wrong", f"a visitor ({kind}) read {error}")
            except Exception as error:
                met = error.__cause__ if isinstance(error, bedrockish.dbapi.Error) else error
                if isinstance(met, ConflictError | UnavailableError | OutcomeUnknownError | TemporaryLostError):
                    self._write("errors of visits", met.code)
                else:
                    self._write("wrong", f"a visitor ({kind}) met {error!r}")
            self._pause()

    def _write(self, *event: Any) -> None:
        self._record.write(json.dumps(event) + "\n")
        self._record.flush()

    def _pause(self) -> None:
        time.sleep(self._luck.uniform(0, PAUSE_S))

    def _place(self) -> str:
        return self._file if self._luck.random() < 0.5 else self._luck.choice(self._urls)

    @contextmanager
    def _connection(self, place: str = "") -> Iterator[Connection]:
        with bedrockish.connect(place or self._place()) as connection:
            yield connection

    def _stream(self) -> None:
        """Read a stream, at times only its beginning."""
        with self._connection() as db, db.stream(STREAMED) as rows:
            if self._luck.random() < 0.5:
                for _ in islice(rows, self._luck.randint(0, PAIRS)):
                    pass
                self._pause()
                return
            self._check([n for _, n, _ in rows])

    def _check(self, values: list[Any]) -> None:
        if len(values) != PAIRS or sum(values) != 0:
            raise WrongReadError(f"{len(values)} pairs with the sum {sum(values)}")

    def _count(self) -> None:
        """Count some visits, each in one request of a client or over HTTP."""
        if self._luck.random() < 0.3:
            self._count_by(lambda visit: self._ask("/db/transaction", [[COUNT[0], *visit], [COUNT[1], visit[0]]]))
            return
        with self._connection() as db:
            for _ in range(self._luck.randint(1, 5)):
                self._count_by(lambda visit: db.transact([(COUNT[0], visit), (COUNT[1], visit[:1])]))

    def _count_by(self, send: Callable[[list[Any]], object]) -> None:
        self._number += 1
        visit = [self._name, self._number]
        self._write("sent", *visit)
        try:
            send(visit)
        except OutcomeUnknownError:
            raise
        except BedrockishError:
            self._write("refused", *visit)
            raise
        self._write("acknowledged", *visit)

    def _ask(self, path: str, statements: list[Any]) -> list[Any]:
        """Send a request over HTTP to any node; return the lines of its answer."""
        link = HTTPConnection("127.0.0.1", self._luck.choice(self._https), timeout=2 * CALL_S)
        with closing(link):
            try:
                link.connect()
            except OSError as error:
                raise UnavailableError("the node refuses connections") from error
            try:
                link.request("POST", path, json.dumps(statements), {"Content-Type": "application/json"})
                answer = link.getresponse()
                lines = [json.loads(line) for line in answer]
            except (OSError, HTTPException, ValueError) as error:
                raise OutcomeUnknownError("the answer was lost") from error
        if answer.status != 200:
            raise unpack_error(lines[0])
        return lines

    def _transfer(self) -> None:
        """Move an amount from one pair to another in an open transaction."""
        source, target = self._luck.sample(range(1, PAIRS + 1), 2)
        with self._connection() as db, db.transaction() as transaction:
            transaction.execute(ADD, [-7, source])
            if self._luck.random() < 0.5:
                self._pause()
            transaction.execute(ADD, [7, target])

    def _leave(self) -> None:
        """Leave a transaction without COMMIT, in the middle of a transfer."""
        with self._connection() as db:
            transaction = db.begin()
            transaction.execute(ADD, [-5, self._luck.randint(1, PAIRS)])
            self._pause()

    def _temporary(self) -> None:
        """Copy all pairs into a TEMP table, read it by a TEMP view, and transfer under a TEMP trigger."""
        place, (source, target) = self._place(), self._luck.sample(range(1, PAIRS + 1), 2)
        with closing(bedrockish.dbapi.connect(place, timeout=CALL_S)) as db:
            db.execute("CREATE TEMP TABLE copied(id INTEGER PRIMARY KEY, n)")
            db.execute("INSERT INTO copied SELECT id, n FROM pairs")
            db.execute("CREATE TEMP VIEW joined AS SELECT c.n FROM copied AS c JOIN pairs USING (id)")
            self._check([n for (n,) in db.execute("SELECT n FROM joined").fetchall()])
            with closing(bedrockish.dbapi.connect(place, timeout=CALL_S)) as other:
                if other.execute("SELECT 1 FROM sqlite_temp_schema").fetchall():
                    raise WrongReadError("the TEMP objects of another connection")
            if self._luck.random() < 0.5:
                db.commit()
            db.execute("CREATE TEMP TABLE moved(id, n)")
            db.execute(
                "CREATE TEMP TRIGGER watch AFTER UPDATE ON pairs BEGIN "
                "INSERT INTO moved VALUES (new.id, new.n - old.n); END"
            )
            db.executemany(ADD, [(-2, source), (2, target)])
            if (moved := db.execute("SELECT id, n FROM moved").fetchall()) != [(source, -2), (target, 2)]:
                raise WrongReadError(f"{moved} from a TEMP trigger")
            db.commit()

    def _snapshot(self) -> None:
        """Read all pairs twice at one moment."""
        with self._connection(self._file) as db, db.snapshot():
            first = db.execute(ALL_PAIRS).rows
            self._check([n for _, n in first])
            self._pause()
            if db.execute(ALL_PAIRS).rows != first:
                raise WrongReadError("two states within one snapshot")

    def _savepoint(self) -> None:
        """Undo a half of a transfer by ROLLBACK TO, then transfer."""
        source, target = self._luck.sample(range(1, PAIRS + 1), 2)
        with closing(bedrockish.dbapi.connect(self._place(), timeout=CALL_S, isolation_level=None)) as db:
            for sql, values in (
                ("BEGIN", ()),
                ("SAVEPOINT half", ()),
                (ADD, (100, source)),
                ("ROLLBACK TO half", ()),
                (ADD, (-3, source)),
                (ADD, (3, target)),
                ("RELEASE half", ()),
                ("COMMIT", ()),
            ):
                db.execute(sql, values)

    def _order(self) -> None:
        """Add an order with its lines, change or delete orders, or delete or renumber a customer with its orders."""
        customer = self._luck.randint(1, CUSTOMERS)
        if self._luck.random() < 0.6:
            self._number += 1
            tag = f"{self._name} {self._number}"
            with closing(bedrockish.dbapi.connect(self._place(), timeout=CALL_S)) as db, db:
                added = "INSERT INTO orders(amount, tag, customer) VALUES (?, ?, ?) RETURNING tag"
                if db.execute(added, (self._luck.randint(1, 9), tag, customer)).fetchall() != [(tag,)]:
                    raise WrongReadError("another row from RETURNING")
                db.executemany("INSERT INTO lines VALUES (?, ?)", [(tag, number) for number in range(LINES)])
            return
        texts = self._luck.choice(
            (
                ("DELETE FROM customers WHERE id = ?1", "INSERT INTO customers(id) VALUES (?1)"),
                ("UPDATE customers SET id = -id WHERE id = ?1", "UPDATE customers SET id = -id WHERE id = -?1"),
                ("UPDATE orders SET amount = amount + 1 WHERE customer = ?1",),
                ("DELETE FROM orders WHERE tag IN (SELECT tag FROM orders WHERE customer = ?1 LIMIT 2)",),
            )
        )
        with self._connection() as connection:
            connection.transact([(text, [customer]) for text in texts])

    def _write_page(self) -> None:
        """Write a page of some words, or remove it; the index of words follows."""
        page, body = self._luck.randint(1, PAGES), " ".join(self._luck.choices(WORDS, k=self._luck.randint(1, 4)))
        with self._connection() as db:
            if self._luck.random() < 0.3:
                db.execute("DELETE FROM pages WHERE id = ?", [page])
            else:
                upsert = "INSERT INTO pages VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body"
                db.execute(upsert, [page, body])

    def _check_state(self) -> None:
        """Search for rows of a state that no moment contains: by a client, or over HTTP."""
        name, sql = self._luck.choice(list(CHECKS.items()))
        if self._luck.random() < 0.3:
            *_, last = self._ask("/db/stream", [sql])
            if not isinstance(last, dict) or "columns" in last:
                raise UnavailableError("the stream broke off")
            if "error" in last:
                raise unpack_error(last["error"])
            found = last["rows"]
        else:
            with self._connection() as db:
                found = db.execute(sql, read=self._luck.choice(["stale", "session", "strict"]), timeout=CALL_S).rows
        if found:
            raise WrongReadError(f"a wrong state ({name}): {found}")

    def _attach(self) -> None:
        """Transfer the amounts that an attached file names."""
        source, target = self._luck.sample(range(1, PAIRS + 1), 2)
        with (
            NamedTemporaryFile(suffix=".sqlite") as file,
            closing(bedrockish.dbapi.connect(self._file, timeout=CALL_S, isolation_level=None)) as db,
        ):
            with closing(sqlite3.connect(file.name)) as made:
                made.execute("CREATE TABLE moves AS SELECT ? AS id, -4 AS n UNION ALL SELECT ?, 4", (source, target))
                made.commit()
            db.execute("ATTACH ? AS other", (file.name,))
            db.execute("BEGIN")
            db.execute("UPDATE pairs SET n = pairs.n + m.n FROM other.moves AS m WHERE m.id = pairs.id")
            db.execute("COMMIT")

    def _cancel(self) -> None:
        """Cancel transfers of the trio client at any of their steps."""

        async def transfer(client: Client) -> None:
            source, target = self._luck.sample(range(1, PAIRS + 1), 2)
            with trio.move_on_after(self._luck.choice([0.001, 0.01, 0.1]) * self._luck.random()):
                async with client.transaction(timeout=CALL_S) as transaction:
                    await transaction.execute(ADD, [-6, source])
                    await transaction.execute(ADD, [6, target])

        async def run() -> None:
            async with bedrockish.open_client(self._place()) as client:
                for _ in range(5):
                    await transfer(client)

        try:
            trio.run(run)
        except BaseExceptionGroup as error:
            raise unwrap(error) from None

    def _strict(self) -> None:
        with self._connection() as db:
            if (found := db.execute(SUM, read="strict").value()) != 0:
                raise WrongReadError(f"pairs with the sum {found}")


def main() -> None:
    """Visit in several threads until the process is killed."""
    path, seed, file, *urls = sys.argv[1:]
    with open(path, "a", encoding="utf-8") as record:
        record.write("\n")  # an earlier process may have been killed in the middle of a line
        names = [f"{Path(file).stem}{seed}.{number}" for number in range(VISITORS)]
        visitors = [_Visitor(name, file, urls, record, random.Random(name)) for name in names]
        threads = [threading.Thread(target=visitor.run) for visitor in visitors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
