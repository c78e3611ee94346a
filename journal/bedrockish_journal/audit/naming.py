"""What a finding is about, in the words of whoever uses the database: the transaction, the table and the row.

Audits find places in timelines; what stood there is looked up for the findings that are printed, entry by entry, and
without Spark. An entry that was altered or removed is looked up in the journals of other nodes as well.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow.dataset as ds

from bedrockish_journal.audit.report import Finding
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.export.manifest import files_of, read_manifest
from bedrockish_journal.spark.source.feeds import Feed, open_feed
from bedrockish_journal.spark.source.inputs import Inputs
from bedrockish_journal.spark.source.plans import Wanted
from bedrockish_journal.spark.source.tables import TABLES

MOST = 100  # findings of an audit that are looked up
Row = tuple[str, str, str | None]  # transaction, table, key


def named(inputs: Inputs, found: Sequence[Finding]) -> list[Finding]:
    """Return findings with transaction, table and key, as far as a journal has what stood at their place.

    Args:
        inputs: the journals that were audited.
        found: findings of one audit.
    """
    named: list[Finding] = []
    with ExitStack() as stack:
        feeds: dict[str, Feed] = {}
        for place, one in enumerate(found):
            if one.leader is None or one.tick is None or (one.table and one.txid) or place >= MOST:
                named.append(one)
                continue
            rows = next(filter(None, (_rows(stack, feeds, inputs, node, one) for node in _order(inputs, one))), [])
            named.append(_with(one, rows))
    return named


def _order(inputs: Inputs, finding: Finding) -> list[str]:
    """Return the nodes to ask: those that the finding is about first."""
    own = (finding.node or "").split(", ")
    return sorted(inputs.nodes, key=lambda node: (node not in own, node))


def _with(finding: Finding, rows: list[Row]) -> Finding:
    if not rows:
        return finding
    txid, table, key = rows[0]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 and key is not None else ""
    return finding._replace(
        txid=finding.txid or txid,
        table=finding.table or table or None,
        key=finding.key or (f"{key}{more}" if key is not None else None),
    )


def _rows(stack: ExitStack, feeds: dict[str, Feed], inputs: Inputs, node: str, finding: Finding) -> list[Row]:
    """Return the rows that an entry changed, as one node's journal has it; one without a row if there are none."""
    assert finding.leader is not None
    assert finding.tick is not None
    if node in inputs.exports:
        found = list(_exported(inputs.exports[node], node, finding.leader, finding.tick))
    else:
        if node not in feeds:
            feeds[node] = stack.enter_context(open_feed(inputs.files[node]))
        found = list(_stored(feeds[node], finding.leader, finding.tick))
    return [row for row in found if finding.txid in (None, row[0])]


def _stored(feed: Feed, leader: str, tick: int) -> Iterator[Row]:
    changes, context = TABLES["changes"], feed.context
    names = list(changes.columns)
    table, key, rowid = names.index("table"), names.index("pk"), names.index("rowid")
    context.skip, context.columns = True, frozenset(("table", "pk", "rowid"))
    assert changes.make is not None
    try:
        for stored in list(feed.scan([(leader, tick, tick)], Wanted())):
            rows = list(changes.make(context, stored)) if stored.kind == changes.kind else []
            txid = f"{stored.origin}-{stored.clock:x}"
            for row in rows:
                yield txid, row[table], row[key] or (None if row[rowid] is None else str(row[rowid]))
            if stored.kind != changes.kind:
                yield txid, "", None
    except JournalError:
        return  # removed, or not readable: another journal may have it


def _exported(directory: str, node: str, leader: str, tick: int) -> Iterator[Row]:
    manifest = read_manifest(directory)
    files = [path for path in files_of(directory, "changes", manifest) if f"/node={node}/" in path]
    if files:
        condition = (ds.field("leader") == leader) & (ds.field("tick") == tick)
        columns = ["txid", "table", "pk", "rowid"]
        for row in ds.dataset(files, format="parquet").to_table(columns=columns, filter=condition).to_pylist():
            yield row["txid"], row["table"], row["pk"] or (None if row["rowid"] is None else str(row["rowid"]))
