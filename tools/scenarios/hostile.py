"""Measures how long other clients wait while one client sends the dearest requests of each kind to one node.

For each request: the time of its answer, the answer, the 99th percentile and the maximum of short reads and writes at
the same node, and the node's memory. At the end calls that nothing interrupts run while the node gets SIGTERM.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from bedrockish import Connection, connect
from bedrockish.errors import BedrockishError
from bedrockish.sqltext.statement_ends import split
from tools.bench import quantile
from tools.cluster import LocalCluster, local_cluster

SCHEMA = (
    "CREATE TABLE page(id INTEGER PRIMARY KEY, html TEXT, n INTEGER)",
    "CREATE INDEX page_html ON page(html)",
    "CREATE TABLE other(id INTEGER PRIMARY KEY, n INTEGER)",
    "CREATE VIRTUAL TABLE found USING fts5(body)",
)
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
FILL = f"INSERT INTO page(id, html, n) {ENDLESS[:-1]} LIMIT 2000) SELECT x, 'page ' || x, x FROM n"
P99_MS = 100.0
STOPS_S = 15.0
SOME = 50  # statements of the other clients before the dear one
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Dear:
    """One dear request: its text and parameters, and the way in which it is sent."""

    sql: str
    params: tuple[object, ...] = ()
    way: str = "execute"


def numbers(count: int) -> str:
    """Return numbers as a list of SQL."""
    return ",".join(map(str, range(count)))


def members(prefix: str, count: int) -> str:
    """Return a JSON object."""
    return "{" + ",".join(f'"{prefix}{number:07d}":1' for number in range(count)) + "}"


def cases() -> dict[str, Dear]:
    """Return the dear requests by kind."""
    doubling = ", ".join(f"c{n} AS (c{n - 1} || c{n - 1})" for n in range(1, 32))
    common = ", ".join(f"c{n}(x) AS (SELECT (SELECT x FROM c{n - 1}) + (SELECT x FROM c{n - 1}))" for n in range(1, 15))
    stops = ",".join(f"(SELECT n FROM page WHERE html > '{n}' AND n = 3 LIMIT 1)" for n in range(400))
    texts = ",".join(f"'{n}'" for n in range(20_000))
    whens = " ".join(f"WHEN {n} THEN {n}" for n in range(10_000))
    characters = "".join(chr(0x100 + n % 0x5000) for n in range(20_000)) + "z"
    wide = " UNION ".join(["SELECT " + ",".join(["1"] * 1_000)] * 400)
    return {
        "semicolons in a string": Dear("INSERT INTO page(html) VALUES ('" + "<p>a &amp; b</p>\n" * 30_000 + "')"),
        "comments": Dear("/**/" * 100_000 + "SELECT 1"),
        "comments before a keyword": Dear("/**/" * 60 + "COMMITTED"),
        "20,000 ids as parameters": Dear(
            f"SELECT count(*) FROM page WHERE id IN ({','.join('?' * 20_000)})", tuple(range(20_000))
        ),
        "50,000 ids": Dear(f"SELECT count(*) FROM page WHERE id IN ({numbers(50_000)})"),
        "50,000 ids, deleted": Dear(f"DELETE FROM page WHERE id IN ({numbers(50_000)})"),
        "20,000 texts in an index": Dear(f"DELETE FROM page WHERE html IN ({texts})"),
        "50,000 ids in a transaction": Dear(f"DELETE FROM page WHERE id IN ({numbers(50_000)})", (), "transaction"),
        "50,000 ids, streamed": Dear(f"SELECT id FROM page WHERE id IN ({numbers(50_000)})", (), "stream"),
        "400 subqueries with LIMIT": Dear(f"SELECT {stops}"),
        "30,000 rows of VALUES": Dear("INSERT INTO other(n) VALUES " + ",".join(["(1)"] * 30_000)),
        "CASE of 10,000": Dear(f"UPDATE other SET n = CASE n {whens} END"),
        "wide UNION": Dear(wide),
        "9,000 statements": Dear("SELECT 1;" * 9_000),
        "generated columns that double": Dear(f"CREATE TABLE doubled(c0, {doubling})"),
        "common tables that double": Dear(f"WITH c0(x) AS (SELECT 1), {common} SELECT x FROM c14"),
        "recursion without end": Dear(f"{ENDLESS} SELECT max(x) FROM n"),
        "json_patch": Dear("SELECT length(json_patch(?, ?))", (members("a", 11_900), members("b", 11_900))),
        "json_patch of 8 MB": Dear("SELECT length(json_patch(?, ?))", (members("a", 500_000), members("b", 500_000))),
        "LIKE on 16 MB": Dear("SELECT ? LIKE ?", ("a" * 16 * MIB, "%" + "a" * 50 + "b%")),
        "GLOB of a long pattern on 1 MB": Dear("SELECT ? GLOB ?", ("a" * MIB, f"*{'[ab]' * 240}c*")),
        "trim": Dear("SELECT trim(?, ?)", ("z" * 65_000, characters)),
        "instr": Dear("SELECT instr(?, ?)", ("a" * 650_000, "a" * 325_000 + "b")),
        "30 MB in each of 2,000 columns": Dear(f"SELECT {', '.join(['?1'] * 2_000)}", ("a" * 30 * MIB,)),
        "10 KB in each of 2,000 columns": Dear(f"SELECT {', '.join(['?1'] * 2_000)}", ("a" * 10_000,)),
        "30,000 terms of a search": Dear("SELECT rowid FROM found WHERE found MATCH ?", ("a " * 30_000,)),
        "8 MB for FTS5": Dear("INSERT INTO found VALUES (?)", (" ".join(map(str, range(1_080_000))),)),
        "2,000 aggregates": Dear("SELECT " + ", ".join(f"sum(n + {n})" for n in range(1_900)) + " FROM other"),
        "a result of 60 MB": Dear("SELECT hex(zeroblob(?)), hex(zeroblob(?))", (7 * MIB, 7 * MIB)),
    }  # fmt: skip


class Others:
    """Two clients in another process that read and write a row each, and note how long each took, in milliseconds.

    The process of the dear request is busy with its parameters and its answer, through no fault of the node.
    """

    def __init__(self, url: str) -> None:
        program = [sys.executable, "-c", f"from tools.scenarios.hostile import note; note({url!r})"]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # both have an answer

    def tell(self) -> None:
        """Tell the clients to note times from now on."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def stop(self) -> list[float]:
        """End the two clients; return how long their statements took."""
        told, _ = self._process.communicate(timeout=60)
        return [float(one) for one in told.split()]


def note(url: str) -> None:
    """Read and write a row until standard input ends; print how long each statement took since its last line."""
    waits: list[float] = []
    over = threading.Event()

    def run(sql: str) -> None:
        with connect(url) as db:
            while not over.is_set():
                began = time.monotonic()
                try:
                    db.execute(sql)
                except BedrockishError as error:
                    if not error.retry:
                        print("  another client is told:", error, file=sys.stderr, flush=True)
                waits.append(1000 * (time.monotonic() - began))
                time.sleep(0.002)

    texts = ("SELECT n FROM other WHERE id = 1", "UPDATE other SET n = n + 1 WHERE id = 1")
    threads = [threading.Thread(target=run, args=(sql,), daemon=True) for sql in texts]
    for thread in threads:
        thread.start()
    while len(waits) < SOME:
        time.sleep(0.01)
    print("both are at work", flush=True)
    for _ in sys.stdin:
        waits.clear()
    over.set()
    for thread in threads:
        thread.join(60)
    print(*waits)


def send(db: Connection, dear: Dear) -> str:
    """Send a dear request and return its outcome in a few words."""
    try:
        if dear.way == "stream":
            with db.stream(dear.sql, dear.params) as rows:
                return f"{sum(1 for _ in rows)} rows"
        if dear.way == "transaction":
            with db.transaction() as transaction:
                return f"{transaction.execute(dear.sql, dear.params).rowcount} changed"
        if dear.sql.startswith("SELECT 1;"):
            return f"{len(db.transact(list(split(dear.sql))))} results"
        found = db.execute(dear.sql, dear.params)
        return f"{len(found.rows)} rows" if found.columns else f"{found.rowcount} changed"
    except BedrockishError as error:
        return f"{type(error).__name__}: {error.message[:60]}"


def memory_mib(process: int) -> float:
    """Return how much memory a process has, in MiB; not a number where the system does not tell it."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def measure(cluster: LocalCluster, wanted: Callable[[str], bool]) -> list[tuple[str, float, float]]:
    """Send each dear request once; print what came of it, and return each kind with p99 and the longest wait."""
    process = cluster.nodes[0].process
    assert process is not None
    url, found = cluster.url(0, only=True, options="timeout=60"), []
    for kind, dear in {"nothing": Dear("SELECT 1"), **cases()}.items():
        if not wanted(kind):
            continue
        others = Others(url)
        others.tell()
        until = time.monotonic() + 1.5
        with connect(url) as db:
            began = time.monotonic()
            outcome = send(db, dear)
            took_s = time.monotonic() - began
        while time.monotonic() < until:
            time.sleep(0.05)
        waits = sorted(others.stop())
        p99, longest = quantile(waits, 0.99), waits[-1]
        found.append((kind, p99, longest))
        memory = memory_mib(process.pid)
        load = os.getloadavg()[0]
        print(
            f"{kind:32s} {took_s:6.2f} s  others p99 {p99:6.1f} ms, longest {longest:6.1f} ms  "
            f"{memory:5.0f} MiB  load {load:4.1f}  {outcome}",
            flush=True,
        )
    return found


def stop_in_time(cluster: LocalCluster) -> float:
    """Send SIGTERM while workers are in calls that nothing interrupts; return the seconds until the node has ended."""
    process, all_cases = cluster.nodes[0].process, cases()
    assert process is not None
    url = cluster.url(0, only=True, options="timeout=5")

    def call(kind: str) -> None:
        with connect(url) as db:
            send(db, all_cases[kind])

    for kind in ("json_patch", "LIKE on 16 MB", "trim", "GLOB of a long pattern on 1 MB"):
        threading.Thread(target=call, args=(kind,), daemon=True).start()
    time.sleep(1.0)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    process.wait(60)
    return time.monotonic() - began


def main() -> None:
    """Measure each kind and print it."""
    parser = argparse.ArgumentParser(prog="tools/bench hostile", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the name of the kinds that are measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, local_cluster(Path(folder) / "nodes", ("A",)) as cluster:
        trio.run(cluster.wait_ready, 0)
        with connect(cluster.url()) as db:
            db.transact(list(SCHEMA))
            db.transact(["INSERT INTO other VALUES (1, 0)"])
            db.execute(FILL)
        found = measure(cluster, lambda kind: options.only in kind)
        slow = [kind for kind, p99, _ in found if p99 > P99_MS]
        stopped_s = stop_in_time(cluster)
        print(f"SIGTERM with four calls that nothing interrupts: ended after {stopped_s:.1f} s")
    if slow or stopped_s > STOPS_S:
        print(f"others waited above {P99_MS:.0f} ms at p99: {', '.join(slow) or 'never'}")
        sys.exit(1)


if __name__ == "__main__":
    main()
