"""Reads the journals of nodes for an audit: entries as Arrow batches, and a node's other records."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from bedrockish_journal.audit.facts import FACTS, HELD, batch, fact, held_row, lengths_of
from bedrockish_journal.model.entry import entry_hash
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.model.laws import missing_files
from bedrockish_journal.model.rights import greatest
from bedrockish_journal.spark.export.manifest import files_of, read_manifest
from bedrockish_journal.spark.source.feeds import OpenJournal, hides_members, is_url, open_feed
from bedrockish_journal.spark.source.inputs import Inputs
from bedrockish_journal.spark.source.plans import NO_LIMITS, WantedEntries, bounds, plan
from bedrockish_journal.storage.file_claims import Claims, disagreements, read_claims
from bedrockish_journal.storage.row import JournalRow

NO_USER = -1
ROWS_MOST, BYTES_MOST = 20_000, 32 << 20  # rows, and bytes of bodies, at which a batch is passed to the engine
EXPORTED = ["leader", "tick", "seq", "clock", "origin", "command", "kind", "repeat", "label", "body", "prev", "hash"]
_HAS_LIST = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'bedrockish_joined'"
_LISTED = "SELECT command, seq FROM bedrockish_joined WHERE typeof(command) = 'text' AND typeof(seq) = 'integer'"
_UNLISTED = "SELECT count(*) FROM bedrockish_joined WHERE typeof(command) <> 'text' OR typeof(seq) <> 'integer'"

Progress = Callable[[str, int, int], None]
_COLUMNS = {  # the tables of a node's records other than entries
    "given": "node",  # the nodes whose journals were given
    "mark": "node leader tick hash clock",  # the beginning of each timeline whose first entries were removed
    "before": "node leader tick version member voter",  # memberships without an entry in the files
    "left_before": "leader since",  # the timelines that these memberships retired
    "listed": "node command seq",  # the content of bedrockish_joined
    "lists": "node",  # the nodes whose bedrockish_joined was read
    "odd": "node leader tick text",  # rows that no node writes
    "claim": "node law leader tick text",  # false claims of files
    "holder": "version name role",  # the users of each membership; the role of a removed user is NO_USER
    "own_end": "node tick level",  # the end of each node's own timeline, read after everything else
}
_KINDS = {"hash": pa.binary(), "voter": pa.bool_()}
_KINDS |= dict.fromkeys(("tick", "clock", "version", "since", "seq", "role"), pa.int64())
TABLES = {
    table: pa.schema([(name, _KINDS.get(name, pa.string())) for name in names.split()])
    for table, names in _COLUMNS.items()
}


@dataclass(slots=True)
class NodeRecords:
    """The records of nodes other than entries, as rows of ``TABLES``."""

    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the name and the rows of each table."""
        for name, schema in TABLES.items():
            yield name, pa.Table.from_batches([batch(schema, self.rows[name])], schema)

    @property
    def removed(self) -> dict[str, dict[str, int]]:
        """For each node and timeline the last tick that was removed."""
        found: dict[str, dict[str, int]] = {}
        for node, leader, tick, *_ in self.rows["mark"]:
            found.setdefault(node, {})[leader] = tick
        return found


class Reader:
    """A reader of journals that reads each journal once and decodes each distinct entry once."""

    def __init__(self, inputs: Inputs, progress: Progress | None = None) -> None:
        self.inputs, self.records, self.progress = inputs, NodeRecords(), progress
        self._expected: dict[str, int] = {}  # node -> an estimate of the number of its entries
        self._known: set[tuple[bytes, int]] = set()

    def unchecked(self, leaders: Collection[str]) -> dict[str, str]:
        """Return the laws that were not checked completely, each with the missing input.

        Args:
            leaders: the timelines in the journals.
        """
        found: dict[str, str] = {}
        unlisted = sorted({*self.inputs.nodes} - {node for (node,) in self.records.rows["lists"]})
        if unlisted:
            found["columns"] = f"bedrockish_joined in the file of {', '.join(unlisted)}"
        if self.inputs.exports:
            found["void"] = f"bedrockish_meta in the file of {', '.join(sorted(self.inputs.exports))}"
            found["users"] = f"the memberships in the file of {', '.join(sorted(self.inputs.exports))}"
        found |= missing_files(self.inputs.nodes, leaders)
        return found | {"tables": "journal verify --tables", "anchor": "journal verify --anchor"}

    def batches(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield rows of ``held``, and of ``facts`` for the new entries among them.

        Raises:
            JournalError: a journal cannot be read.
        """
        self.read_records()
        for node in self.inputs.nodes:
            source = self._exported(node) if node in self.inputs.exports else self._file(node)
            yield from self._batches(node, source)
        self.read_ends()

    def read_records(self) -> None:
        """Read the records of nodes other than entries.

        Raises:
            JournalError: a journal cannot be read.
        """
        claims: dict[str, Claims] = {}
        for node in self.inputs.nodes:
            self.records.rows["given"].append((node,))
            if node in self.inputs.exports:
                self._read_exported_records(node)
            else:
                with open_feed(self.inputs.files[node]) as feed:
                    self._read_node_records(node, feed, self.inputs.files[node])
                    claims[node] = read_claims(feed.ask, node, whole=not is_url(self.inputs.files[node]))
        wrong = [one for found in claims.values() for one in found.wrong]
        self.records.rows["claim"] = [
            (one.node, one.check, one.leader, one.tick, one.text) for one in [*wrong, *disagreements(claims)]
        ]
        memberships = {version: said for found in claims.values() for version, said in found.memberships.items()}
        self.records.rows["holder"] = [
            (version, name, NO_USER if user is None else greatest(user))
            for version, said in memberships.items()
            for name, user in said.users.items()
        ]

    def _batches(self, node: str, source: Iterator[JournalRow]) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        held: list[tuple[Any, ...]] = []
        facts: list[tuple[Any, ...]] = []
        size = count = 0
        for row in source:
            count += 1
            if not row.is_well_typed:
                text = f"row {row.seq} of the journal has values of types that a journal never has"
                self.records.rows["odd"].append(
                    (node, str(row.leader), row.tick if type(row.tick) is int else None, text)
                )
                continue
            digest, lengths = entry_hash(row.prev, row.label, row.body), lengths_of(row.prev, row.label)
            held.append(held_row(node, row, digest, lengths))
            if (digest, lengths) not in self._known:
                self._known.add((digest, lengths))
                facts.append(fact(digest, lengths, row.label, row.body))
                size += len(row.body)
            if len(held) >= ROWS_MOST or size >= BYTES_MOST:
                yield batch(HELD, held), batch(FACTS, facts)
                held, facts, size = [], [], 0
                if self.progress is not None:
                    self.progress(node, count, self._expected.get(node, 0))
        yield batch(HELD, held), batch(FACTS, facts)

    def _file(self, node: str) -> Iterator[JournalRow]:
        with open_feed(self.inputs.files[node]) as feed:
            self._expected[node] = sum(high - low + 1 for low, high in bounds(feed.ask).values())
            for spans in plan(feed.ask, NO_LIMITS, None):
                yield from feed.scan(spans, WantedEntries())

    def _read_node_records(self, node: str, feed: OpenJournal, path: str) -> None:
        rows, beginning = self.records.rows, feed.context.beginning
        rows["mark"] += [(node, mark.leader, mark.tick, mark.hash, mark.clock) for mark in beginning.marks]
        for leader, tick, (version, member, _address, voter, _store, retired) in beginning.members(path):
            rows["before"].append((node, leader, tick, version, member, voter))
            rows["left_before"] += retired
        if hides_members(path, feed.context):
            raise JournalError(
                f"{feed.context.path} shows the entries about members and users to admins only, as they were hashed; "
                "log in as an admin, or give the node's file"
            )
        if is_url(path):
            return
        rows["lists"].append((node,))
        if next(iter(feed.ask(_HAS_LIST, ())))[0]:
            rows["listed"] += [(node, *row) for row in feed.ask(_LISTED, ())]
            if odd := next(iter(feed.ask(_UNLISTED, ())))[0]:
                rows["odd"].append((node, None, None, f"bedrockish_joined has {odd} rows that no node writes"))

    def _read_exported_records(self, node: str) -> None:
        rows = self.records.rows
        if found := files_of(self.inputs.exports[node], "pruned", node):
            for row in ds.dataset(found, format="parquet").to_table().to_pylist():
                rows["mark"].append((node, row["leader"], row["tick"], row["hash"], row["clock"]))
        if found := files_of(self.inputs.exports[node], "members", node):
            for row in ds.dataset(found, format="parquet").to_table().to_pylist():
                if row["clock"] is None:  # the entry of the membership is not in the export
                    place = (node, row["leader"], row["tick"])
                    rows["before"].append((*place, row["version"], row["member"], row["voter"]))
                    rows["left_before"] += row["retired"]

    def _exported(self, node: str) -> Iterator[JournalRow]:
        if not (found := files_of(self.inputs.exports[node], "commits", node)):
            return
        for part in ds.dataset(found, format="parquet").to_batches(columns=EXPORTED, batch_size=ROWS_MOST // 4):
            for one in part.to_pylist():
                yield JournalRow(applied_ms=0, **{**one, "repeat": int(one["repeat"])})

    def read_ends(self) -> None:
        """Read the end of each node's own timeline again, because a running node writes more after ``read_records``."""
        rows = self.records.rows["own_end"]
        for node, path in self.inputs.files.items():
            with open_feed(path) as feed:
                rows.append((node, bounds(feed.ask).get(node, (0, 0))[1], "fault"))
        for node, directory in self.inputs.exports.items():  # an export may be older than other nodes' files
            rows.append((node, read_manifest(directory).vectors[node].get(node, 0), "information"))
