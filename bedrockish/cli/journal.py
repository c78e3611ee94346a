"""``bedrockish journal``: read, verify, replay and compare the journals in nodes' files. Most need no running node."""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import apsw
import click
from rich.markup import escape
from rich.table import Table

from bedrockish.cli.anchor import anchor_option, compare_with_anchors, in_words
from bedrockish.cli.options import console, load_plugins, plugins_option
from bedrockish.cli.progress import write_over
from bedrockish.cli.upkeep import hold, prune
from bedrockish.cli.url import UrlGroup
from bedrockish.cli.words import whose
from bedrockish_journal.model.changes import Change, decode_changes, decode_statements
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError, JournalError
from bedrockish_journal.model.moment import Moment, parse_moment
from bedrockish_journal.model.transaction import ROWS, SCHEMA
from bedrockish_journal.model.vector import format_vector
from bedrockish_journal.storage.pruning import marks
from bedrockish_journal.storage.row import COLUMNS, JournalRow
from bedrockish_journal.storage.store import open_readonly, reading
from bedrockish_journal.storage.table_layout import find_table, print_key
from bedrockish_journal.verify.anchored import Anchored
from bedrockish_journal.verify.differences import last_writers
from bedrockish_journal.verify.replay import digest, replay
from bedrockish_journal.verify.tables import began_with_tables, compare_with_journal, why_not_whole
from bedrockish_journal.verify.verify import Verification, known_nodes, verify

FILE = click.Path(path_type=Path)
DIFFERENCES_MAX = 20  # rows of one file that are printed
SHOWN_MAX = 60  # characters of a statement or value in a line


@click.group(cls=UrlGroup)
def journal() -> None:
    """Read, verify and replay the journal in a node's file; shorten it in running nodes."""


@journal.command(cls=click.Command)
@click.argument("file", type=FILE)
@click.option("--leader", metavar="NODE", help="Only the timeline of this node.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The number of entries to print, the last ones.",
)
@click.option(
    "--from-tick", type=click.IntRange(1), help="Print from this tick on, oldest first; by default the last entries."
)
@click.option("--changes", is_flag=True, help="Print the rows that each entry changed.")
def show(file: Path, leader: str | None, limit: int, from_tick: int | None, changes: bool) -> None:
    """Print the entries of FILE, newest last, in the order in which its node applied them."""
    with reading(file) as db:
        nodes = known_nodes(db)
        keys = KeyPrinter(db)
        for entry in _chosen(db, leader, limit, from_tick):
            click.echo(describe(entry, nodes, keys))
            if changes:
                for line in _change_lines(entry, keys):
                    click.echo(f"    {line}")


def _chosen(db: apsw.Connection, leader: str | None, limit: int, from_tick: int | None) -> Iterator[Entry]:
    """Yield the chosen entries in the order in which they were applied; only their row numbers are held in memory."""
    where = ["1"]
    values: list[str | int] = []
    if leader is not None:
        where.append("leader = ?")
        values.append(leader)
    if from_tick is not None:
        where.append("tick >= ?")
        values.append(from_tick)
    direction = "DESC" if from_tick is None else "ASC"
    chosen = f"SELECT seq FROM bedrockish_journal WHERE {' AND '.join(where)} ORDER BY seq {direction} LIMIT ?"
    query = f"SELECT {COLUMNS} FROM bedrockish_journal WHERE seq IN ({chosen}) ORDER BY seq"
    for row in db.execute(query, (*values, limit)):
        yield JournalRow._make(row).entry()


class KeyPrinter:
    """The printer of keys of changed rows, by the primary key that their table has now."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._primary: dict[str, tuple[str, ...]] = {}

    def print(self, change: Change) -> str:
        """Return ``7`` for a rowid, else the values of the primary key."""
        if change.table not in self._primary:
            table = find_table(self._db, change.table)
            self._primary[change.table] = table.primary if table is not None else ()
        return print_key(change, self._primary[change.table])


def describe(entry: Entry, nodes: list[str], keys: KeyPrinter) -> str:
    """Return an entry as one line in the notation of vectors: ``A4: COMMIT A-64f…=[4, *, 0] after [3, 1, 0] account``.

    Args:
        nodes: all nodes of the cluster, sorted: a vector has a component for each.
    """
    everybody = sorted({*nodes, *entry.quorum, *entry.after})
    after = {node: entry.after.get(node, 0) for node in everybody}
    adopted = f" adopted from {entry.adopted_from}" if entry.adopted_from is not None else ""
    commands = entry.transaction.commands
    shared = f" ({len(commands)} commands)" if len(commands) > 1 else ""
    return (
        f"{entry.leader}{entry.tick}: COMMIT {entry.txid}={format_vector(entry.quorum, everybody)}{adopted} "
        f"after {format_vector(after, everybody)} {_subject(entry, keys)}{shared}"
    ).rstrip()


def _subject(entry: Entry, keys: KeyPrinter) -> str:
    """Return the subject of an entry in a few words: its tables and rows, or its statement."""
    transaction = entry.transaction
    try:
        if transaction.kind == SCHEMA:
            return _short("; ".join(decode_statements(transaction.changes)))
        if transaction.kind != ROWS:
            return transaction.kind
        changes = decode_changes(transaction.changes)
    except EntryMalformedError as error:
        return f"(cannot be read: {error})"
    words = list(dict.fromkeys(f"{change.table} {keys.print(change)}" for change in changes))
    return _short(", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else ""))


def _change_lines(entry: Entry, keys: KeyPrinter) -> Iterator[str]:
    transaction = entry.transaction
    if transaction.joined or transaction.users:
        commands = ", ".join(whose(command, transaction.user_of(command)) for command in transaction.commands)
        yield f"command{'s' if transaction.joined else ''} {commands}"
    if transaction.kind == SCHEMA:
        yield from decode_statements(transaction.changes)
    elif transaction.kind == ROWS:
        for change in decode_changes(transaction.changes):
            yield f"{change.op} {change.table} {keys.print(change)} {_values(change)}"


def _values(change: Change) -> str:
    if change.before is None or change.after is None:
        row = change.after if change.before is None else change.before
        pairs = zip(change.columns, row or (), strict=True)
        return ", ".join(f"{column}={_short(repr(value))}" for column, value in pairs)
    parts = [
        f"{column}: {_short(repr(before))} -> {_short(repr(after))}"
        for column, before, after in zip(change.columns, change.before, change.after, strict=True)
        if (type(before), before) != (type(after), after)
    ]
    if change.rowid != change.rowid_after:
        parts.insert(0, f"rowid: {change.rowid} -> {change.rowid_after}")
    return ", ".join(parts) or "nothing"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


@journal.command("verify", cls=click.Command)
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--tables", is_flag=True, help="Also replay each journal, and compare the result with the tables.")
@anchor_option
@plugins_option
@click.pass_context
def verify_files(
    context: click.Context,
    files: tuple[Path, ...],
    as_json: bool,
    tables: bool,
    anchor: Path | None,
    plugins: tuple[str, ...],
) -> None:
    """Verify the journals in FILES, each for itself and against each other. Ends with status 1 if anything is wrong.

    The tables are checked only with --tables.
    """
    report = verify([*files], None if as_json else _progress)
    compared = _compare_tables(files, plugins) if tables else None
    anchored = compare_with_anchors(files, anchor)
    if anchored is not None:
        report.findings.extend(anchored.findings)
        report.unseen.pop("anchor")
    if as_json:
        packed = {"holds": report.holds} | asdict(report) | {"tables": compared}
        click.echo(json.dumps(packed | {"anchors": anchored and asdict(anchored)}, indent=2))
    else:
        _print_report(report, compared, anchored)
    if not report.holds or any(one["differences"] or one["why_not"] for one in (compared or {}).values()):
        context.exit(1)


def _compare_tables(files: tuple[Path, ...], plugins: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Compare each file's tables with its journal; return, by file, the differences, or why they were not compared."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        db = open_readonly(file)
        why_not, is_pruned = why_not_whole(db), bool(marks(db))
        db.close()
        texts: list[str] = []
        if not is_pruned:  # if a cluster began with tables, only tables that the journal makes are compared
            try:
                rows = compare_with_journal(file, load_plugins(plugins), DIFFERENCES_MAX)
                writers = last_writers(os.fspath(file), rows)
                for row in rows:
                    wrote = writers.get((row.table, row.key or ""))
                    place = f"; {wrote.leader}{wrote.tick} wrote it last ({wrote.txid})" if wrote else ""
                    texts.append(row.text + place)
            except JournalError as error:  # ``verify`` has reported other faults of the journal
                why_not = why_not or f"the journal cannot be replayed: {error}"
        found[os.fspath(file)] = {"differences": texts, "why_not": why_not}
    return found


def _print_tables(compared: dict[str, dict[str, Any]] | None) -> None:
    if compared is None:
        click.echo("the tables were not compared with the journals: use --tables")
    for file, one in (compared or {}).items():
        for text in one["differences"]:
            click.echo(f"{file}: tables: {text}")
        if one["why_not"]:
            click.echo(f"{file}: the tables were not compared: {one['why_not']}")
        elif not one["differences"]:
            click.echo(f"{file}: the tables equal a replay of the journal")


def _progress(node: str, entries: int) -> None:
    write_over(f"{node}: {entries} entries")


def _print_report(report: Verification, compared: dict[str, dict[str, Any]] | None, anchored: Anchored | None) -> None:
    write_over()
    out = console()
    table = Table(box=None, header_style="bold")
    for title in ("node", "file", "entries", "adopted", "second labels", "applied"):
        table.add_column(title, overflow="fold")
    nodes = sorted({node for counts in report.counts for node in counts.nodes})
    for counts in report.counts:
        vector = {node: counts.applied.get(node, 0) for node in nodes}
        cells = (counts.entries, counts.adopted, counts.repeats, format_vector(vector, nodes))
        table.add_row(escape(counts.node), escape(counts.path), *(escape(str(cell)) for cell in cells))
    out.print(table)
    for counts in report.counts:
        if counts.removed:
            begins = ", ".join(f"{who}{tick}" for who, tick in counts.removed.items())
            out.print(f"{counts.node} has removed up to {begins}", markup=False, highlight=False)
    for node, spans in report.lacks.items():
        behind = ", ".join(f"{who}{first}" + (f" to {who}{last}" if last > first else "") for who, first, last in spans)
        out.print(f"{node} lacks {behind}", markup=False, highlight=False)
    for finding in report.findings:
        out.print(f"{finding.node}: {finding.check}: {finding.text}", markup=False, highlight=False, style="red")
    _print_tables(compared)
    if anchored is not None:
        click.echo(in_words(anchored))
    unseen = {name: what for name, what in report.unseen.items() if compared is None or name != "tables"}
    told = ", ".join(f"{name} ({what})" for name, what in unseen.items())
    out.print(f"not checked: {told}", markup=False, highlight=False)
    if report.holds:
        entries = sum(counts.entries for counts in report.counts)
        files = len(report.counts)
        click.echo(f"the journals hold: {entries} entries in {files} file{'s' * (files != 1)}")
    else:
        click.echo(f"{len(report.findings)} finding{'s' * (len(report.findings) != 1)}")


def moment_option(name: str) -> Callable[[Any], Any]:
    """Return an option that takes a moment; the function gets it as ``until``."""

    def read(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Moment | None:
        return None if value is None else parse_moment(value, time.time_ns() // 1_000_000)

    text = (
        "The last clock to include, or a time with its zone before which all commits are, or places such as A:12,B:3."
    )
    return click.option(name, "until", metavar="CLOCK|TIME|VECTOR", callback=read, help=text)


@journal.command("replay", cls=click.Command)
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option("--to", "target", type=FILE, required=True, help="The database file to write; must not exist.")
@moment_option("--until")
@click.option("--order", type=click.Choice(["journal", "random"]), default="journal", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the random order.")
@plugins_option
def replay_files(
    files: tuple[Path, ...], target: Path, until: Moment | None, order: str, seed: int, plugins: tuple[str, ...]
) -> None:
    """Rebuild a database from nothing but the journals in FILES, and print its digest."""
    draw = Random(seed).random if order == "random" else None
    report = replay([*files], target, until=until, draw=draw, prepare=load_plugins(plugins))
    click.echo(
        f"{report.entries} entries ({report.repeats} second labels), {report.changes} rows, "
        f"{report.statements} schema statements, in {order} order"
        + (f"; {report.later} later entries left out" if until is not None else "")
    )
    click.echo(f"{report.digest}  {report.target}")
    if any(map(began_with_tables, files)):
        click.echo(f"{report.target} lacks the tables with which the cluster began: no journal has them", err=True)


@journal.command("digest", cls=click.Command)
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.pass_context
def digest_files(context: click.Context, files: tuple[Path, ...]) -> None:
    """Print a digest of the tables in each of FILES. Ends with status 1 if they differ."""
    digests = set()
    for file in files:
        found = digest(file)
        digests.add(found)
        click.echo(f"{found}  {os.fspath(file)}")
    if len(digests) > 1:
        click.echo(f"the {len(files)} files have {len(digests)} different contents", err=True)
        context.exit(1)


journal.add_command(prune)
journal.add_command(hold)
