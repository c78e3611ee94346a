"""The report of an audit, the same for every engine.

The laws' queries find places in timelines. For the findings that are printed, the report looks the entry at the place
up, without the engine, and names the transaction, the table and the row. An entry that was altered or removed is looked
up in the journals of other nodes as well.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.dataset as ds

from bedrockish_journal.audit.queries import QUERIES, question
from bedrockish_journal.audit.reading import Reader
from bedrockish_journal.audit.views import Dialect
from bedrockish_journal.model.access_set import object_of
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.laws import FAULT, INFORMATION, LAWS, Finding
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.spark.export.manifest import files_of
from bedrockish_journal.spark.source.change_rows import CHANGES, ChangeRows
from bedrockish_journal.spark.source.feeds import OpenJournal, open_feed
from bedrockish_journal.spark.source.inputs import Inputs
from bedrockish_journal.spark.source.plans import WantedEntries

MOST = 100  # most findings of a law that are looked up
Row = tuple[str, str, str | None]  # transaction, table, key


@dataclass(frozen=True, slots=True)
class AuditExtent:
    """The extent of an audit's input."""

    nodes: list[str]  # the nodes whose journals were given
    entries: int  # the number of entries in all journals together
    transactions: int  # the number of different transactions
    heads: dict[str, int]  # the last tick of each timeline
    # For each node and timeline, the last tick that was removed from the node's journal: up to it nothing was checked.
    removed: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class LawOutcome:
    """The findings of one law."""

    check: str  # the name of the law
    says: str  # the law in words
    findings: list[Finding]  # the first findings
    counts: dict[str, int]  # the number of all findings of each level


AuditResult = AuditExtent | LawOutcome | dict[str, str]  # a part of a report; see ``results``


def results(
    reader: Reader,  # has read the journals
    ask: Callable[[str], Sequence[Sequence[Any]]],  # runs a query in the engine
    dialect: Dialect,  # the engine's SQL
    limit: int,  # the greatest number of findings of each law
    laws: Collection[str] = QUERIES,  # the laws to check
) -> Iterator[AuditResult]:
    """Yield the extent of the input, the outcome of each law, and the laws that were not checked with the reasons."""
    rows = ask("SELECT leader, max(tick), count(*) FROM held GROUP BY leader ORDER BY leader")
    ((transactions,),) = ask("SELECT count(DISTINCT txid) FROM held")
    heads = {leader: tick for leader, tick, _ in rows}
    entries = sum(count for *_, count in rows)
    yield AuditExtent(reader.inputs.nodes, entries, transactions, heads, reader.records.removed)
    for law in LAWS:
        if law.name in laws and law.name in QUERIES:
            rows = ask(question(law.name, dialect.names, limit))
            faults, information = rows[0][-2:] if rows else (0, 0)
            counts = {FAULT: int(faults), INFORMATION: int(information)}
            found = [_finding(law.name, row) for row in rows]
            yield LawOutcome(law.name, law.brief, named(reader.inputs, found), counts)
    yield reader.unchecked(heads)


def _finding(law: str, row: Sequence[Any]) -> Finding:
    """Return the finding in a row of the result of ``queries.question``."""
    level, node, leader, tick, txid, key, text, *_ = row
    key = bytes(key) if key else None
    table = object_of(key) if key else None
    text = text.replace("the same key", table) if table else text
    return Finding(law, node or None, leader, tick, txid, table, key.hex() if key else None, text, level)


def named(inputs: Inputs, found: Sequence[Finding]) -> list[Finding]:
    """Add transaction, table and key to the findings whose entry is in a journal."""
    named: list[Finding] = []
    with ExitStack() as stack:
        feeds: dict[str, OpenJournal] = {}
        for number, one in enumerate(found):
            if one.leader is None or one.tick is None or (one.table and one.txid) or number >= MOST:
                named.append(one)
                continue
            rows = next(filter(None, (_rows(stack, feeds, inputs, node, one) for node in _order(inputs, one))), [])
            named.append(_with(one, rows))
    return named


def _order(inputs: Inputs, finding: Finding) -> list[str]:
    """Return the nodes in the order in which they are searched: first the nodes that the finding names."""
    own = (finding.node or "").split(", ")
    return sorted(inputs.nodes, key=lambda node: (node not in own, node))


def _with(finding: Finding, rows: list[Row]) -> Finding:
    if not rows:
        return finding
    txid, table, key = rows[0]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 and key is not None else ""
    return replace(
        finding,
        txid=finding.txid or txid,
        table=finding.table or table or None,
        key=finding.key or (f"{key}{more}" if key is not None else None),
    )


def _rows(stack: ExitStack, feeds: dict[str, OpenJournal], inputs: Inputs, node: str, finding: Finding) -> list[Row]:
    """Return the rows that an entry changed, from one node's journal; one ``Row`` without a key if no row changed."""
    assert finding.leader is not None
    assert finding.tick is not None
    if node in inputs.exports:
        found = list(_exported(inputs.exports[node], node, finding.leader, finding.tick))
    else:
        if node not in feeds:
            feeds[node] = stack.enter_context(open_feed(inputs.files[node]))
        found = list(_stored(feeds[node], finding.leader, finding.tick))
    return [row for row in found if finding.txid in (None, row[0])]


def _stored(feed: OpenJournal, leader: str, tick: int) -> Iterator[Row]:
    feed.context.skip = True
    changes = ChangeRows(feed.context, {name: CHANGES[name] for name in ("txid", "table", "pk", "rowid")})
    try:
        for stored in list(feed.scan([(leader, tick, tick)], WantedEntries())):
            if not stored.is_well_typed:
                continue
            changes.add(stored)
            if stored.kind != ROWS:
                yield f"{stored.origin}-{stored.clock:x}", "", None
        yield from map(_named, changes.take().to_pylist())
    except JournalError:
        return  # the entry was removed or cannot be read; another journal may have it


def _exported(directory: str, node: str, leader: str, tick: int) -> Iterator[Row]:
    if files := files_of(directory, "changes", node):
        condition = (ds.field("leader") == leader) & (ds.field("tick") == tick)
        columns = ["txid", "table", "pk", "rowid"]
        found = ds.dataset(files, format="parquet").to_table(columns=columns, filter=condition)
        yield from map(_named, found.to_pylist())


def _named(row: Mapping[str, Any]) -> Row:
    return row["txid"], row["table"], row["pk"] or (None if row["rowid"] is None else str(row["rowid"]))
