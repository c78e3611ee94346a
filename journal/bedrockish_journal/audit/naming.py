"""Names the subject of a finding for a user of the database: the transaction, the table and the row.

Audits find places in timelines. For the findings that are printed, the entry at the place is looked up, without Spark.
An entry that was altered or removed is looked up in the journals of other nodes as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow.dataset as ds

from bedrockish_journal.audit.report import ReportedFinding
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.spark.export.manifest import files_of, read_manifest
from bedrockish_journal.spark.source.change_rows import CHANGES, ChangeRows
from bedrockish_journal.spark.source.feeds import OpenJournal, open_feed
from bedrockish_journal.spark.source.inputs import Inputs
from bedrockish_journal.spark.source.plans import WantedEntries

MOST = 100  # most findings of an audit that are looked up
Row = tuple[str, str, str | None]  # transaction, table, key


def named(inputs: Inputs, found: Sequence[ReportedFinding]) -> list[ReportedFinding]:
    """Add transaction, table and key to the findings whose entry is in a journal."""
    named: list[ReportedFinding] = []
    with ExitStack() as stack:
        feeds: dict[str, OpenJournal] = {}
        for number, one in enumerate(found):
            if one.leader is None or one.tick is None or (one.table and one.txid) or number >= MOST:
                named.append(one)
                continue
            rows = next(filter(None, (_rows(stack, feeds, inputs, node, one) for node in _order(inputs, one))), [])
            named.append(_with(one, rows))
    return named


def _order(inputs: Inputs, finding: ReportedFinding) -> list[str]:
    """Return the nodes in the order in which they are searched: first the nodes that the finding names."""
    own = (finding.node or "").split(", ")
    return sorted(inputs.nodes, key=lambda node: (node not in own, node))


def _with(finding: ReportedFinding, rows: list[Row]) -> ReportedFinding:
    if not rows:
        return finding
    txid, table, key = rows[0]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 and key is not None else ""
    return finding._replace(
        txid=finding.txid or txid,
        table=finding.table or table or None,
        key=finding.key or (f"{key}{more}" if key is not None else None),
    )


def _rows(
    stack: ExitStack, feeds: dict[str, OpenJournal], inputs: Inputs, node: str, finding: ReportedFinding
) -> list[Row]:
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
            changes.add(stored)
            if stored.kind != ROWS:
                yield f"{stored.origin}-{stored.clock:x}", "", None
        yield from map(_named, changes.take().to_pylist())
    except JournalError:
        return  # the entry was removed or cannot be read; another journal may have it


def _exported(directory: str, node: str, leader: str, tick: int) -> Iterator[Row]:
    manifest = read_manifest(directory)
    files = [path for path in files_of(directory, "changes", manifest) if f"/node={node}/" in path]
    if files:
        condition = (ds.field("leader") == leader) & (ds.field("tick") == tick)
        columns = ["txid", "table", "pk", "rowid"]
        found = ds.dataset(files, format="parquet").to_table(columns=columns, filter=condition)
        yield from map(_named, found.to_pylist())


def _named(row: Mapping[str, Any]) -> Row:
    return row["txid"], row["table"], row["pk"] or (None if row["rowid"] is None else str(row["rowid"]))
