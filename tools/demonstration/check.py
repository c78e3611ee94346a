"""Checks the promises of the demo against the nodes' files.

``check_cluster`` asks the running nodes; ``check_files`` reads the files of the stopped ones with the standard
library's SQLite, so that the judgement does not depend on the project's own code.
"""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bedrockish import open_client
from bedrockish.transfer.load_database import read_plan
from bedrockish_journal.model.plain_names import quote
from bedrockish_journal.verify.replay import digest
from tools.cluster import LocalCluster
from tools.demonstration.work import ACCOUNTS, OPENING_BALANCE, Tally, Transfer


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, and whether it was kept."""

    promise: str  # the promise, in words
    kept: bool  # whether it holds
    found: str  # the finding, in words
    node: str = ""  # the node, if the check was for one node


async def check_cluster(cluster: LocalCluster) -> list[Check]:
    """Check by a strict read at each node that the accounts have all the money."""
    checks = []
    for index, node in enumerate(cluster.nodes):
        async with open_client(cluster.url(index, only=True, options="/?read=strict&timeout=15")) as client:
            total = (await client.execute("SELECT sum(balance) FROM demo_account")).value()
        checks.append(check_money("a strict read finds all the money", total, node.name))
    return checks


def check_money(promise: str, total: object, node: str) -> Check:
    """Compare a sum of balances with the deposits."""
    expected = ACCOUNTS * OPENING_BALANCE
    return Check(promise, total == expected, f"{total} of {expected}", node)


def check_files(cluster: LocalCluster, tally: Tally, source: Path) -> list[Check]:
    """Check each promise in the files of the stopped nodes."""
    digests = {node.name: digest(node.database) for node in cluster.nodes}
    same = len(set(digests.values())) == 1
    text = next(iter(digests.values()))[:16] + "…" if same else str({n: d[:16] for n, d in digests.items()})
    checks = [Check("the tables are the same on all nodes, row by row", same, text)]
    for node in cluster.nodes:
        with closing(sqlite3.connect(node.database)) as db:
            checks += check_file(node.name, db, tally)
            checks.append(check_loaded(node.name, db, source))
    return checks


def check_file(name: str, db: sqlite3.Connection, tally: Tally) -> list[Check]:
    """Examine one node's file: is it sound, is every promise in it once, and do the balances follow from the ledger?"""
    sound = [row[0] for row in db.execute("PRAGMA integrity_check")]
    ledger = [Transfer(*row) for row in db.execute("SELECT id, payer, payee, amount FROM demo_transfer")]
    times = Counter(transfer.id for transfer in ledger)
    wrong = [t.id for t in ledger if t not in (tally.promised.get(t.id), tally.unknown.get(t.id))]
    lost = [id_ for id_ in tally.promised if times[id_] == 0]
    twice = [id_ for id_, count in times.items() if count > 1]
    journal = """SELECT (SELECT count(*) FROM bedrockish_journal WHERE repeat = 0 AND command = ?1)
      + (SELECT count(*) FROM bedrockish_joined WHERE command = ?1)"""
    commits = [id_ for id_ in tally.promised if db.execute(journal, (id_,)).fetchone()[0] != 1]
    expected = dict.fromkeys(range(1, ACCOUNTS + 1), OPENING_BALANCE)
    for transfer in ledger:
        expected[transfer.payer] -= transfer.amount
        expected[transfer.payee] += transfer.amount
    balances = dict(db.execute("SELECT id, balance FROM demo_account").fetchall())
    count = len(tally.promised)
    return [
        Check("the file is a sound SQLite database", sound == ["ok"], ", ".join(sound[:3]), name),
        Check("every promised transfer is there", not lost, f"{count - len(lost)} of {count}{some(lost)}", name),
        Check("no transfer is there twice", not twice, f"{len(twice)}{some(twice)}", name),
        Check("no refused or unasked transfer is there", not wrong, f"{len(wrong)}{some(wrong)}", name),
        Check("the journal has each promise once", not commits, f"{len(commits)} wrong{some(commits)}", name),
        Check("the balances follow from the ledger", balances == expected, f"{len(balances)} accounts", name),
        check_money("no money was made or lost", sum(balances.values()), name),
    ]


def check_loaded(name: str, db: sqlite3.Connection, source: Path) -> Check:
    """Compare the loaded tables with those of the source, value by value, in any order of rows."""
    different = []
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as original:
        tables = [table for table, _ in read_plan(original, source).tables]
        for table in tables:
            query = f"SELECT * FROM {quote(table)}"
            if Counter(original.execute(query)) != Counter(db.execute(query)):
                different.append(table)
    return Check("the loaded tables are unchanged", not different, f"{len(tables)} tables{some(different)}", name)


def some(names: Sequence[str]) -> str:
    """Return the first few names, for the end of a text."""
    return f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""


def print_checks(console: Console, checks: list[Check]) -> None:
    """Print every promise and whether it was kept; equal results of several nodes are on one line."""
    alike: dict[tuple[str, bool, str], list[str]] = {}
    for check in checks:
        alike.setdefault((check.promise, check.kept, check.found), []).append(check.node)
    for (promise, kept, found), nodes in alike.items():
        verdict = "[green]kept  [/]" if kept else "[bold red]BROKEN[/]"
        console.print(f"   {verdict} {promise:<44}{' '.join(filter(None, nodes)):<7}", end="")
        console.print(found, markup=False)
