"""The encoding of a transaction that a program has executed, for its COMMIT, and the checks of the node on it.

The node trusts the read sets of a program, because the program may open its file. It still checks the form of the
message, so that a fault of the program fails the transaction and not the cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import cbor2

from bedrockish.access_sets.catalog import Index
from bedrockish.access_sets.definitions import folded
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.executor import KnownSchema
from bedrockish.engine.execution.prepared_size import check_size
from bedrockish.engine.statements.rights import Rights
from bedrockish.errors import ConflictError, UnavailableError, UsageError
from bedrockish_journal.model.access_set import AccessSet, object_of
from bedrockish_journal.model.changes import Change
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import READER, WRITER
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.model.vector import check

Head = tuple[str, tuple[str, ...]]  # a table and its columns


def encode_prepared(prepared: Prepared) -> bytes:
    """Encode a transaction of rows."""
    keys = prepared.access_set.pack()
    return cbor2.dumps(
        [dict(prepared.base), prepared.schema, prepared.readonly, keys, prepared.changes, prepared.result]
    )


def decode_prepared(data: bytes) -> Prepared:
    """Decode the bytes of ``encode_prepared``; return the transaction.

    Raises:
        UsageError: the bytes are malformed.
        TooLargeError: the transaction is too large for a message between nodes.
    """
    try:
        base, schema, readonly, keys, changes, result = cbor2.loads(data)
        if type(schema) is not int or type(readonly) is not bool:
            raise UsageError("a prepared transaction must have a schema version, and say whether it only reads")
        if type(changes) is not bytes or type(result) is not bytes or (readonly and changes):
            raise UsageError(
                "a prepared transaction has changes and a result as bytes, and no changes if it only reads"
            )
        prepared = Prepared(check(base), schema, readonly, ROWS, AccessSet.unpack(keys), changes, result)
    except (cbor2.CBORError, EntryMalformedError, ValueError, TypeError) as error:
        raise UsageError(f"these {len(data)} bytes are not a prepared transaction: {error}") from error
    check_size(prepared)
    return prepared


@dataclass(slots=True)
class _AsStatement:
    """A transaction in the form of one statement, for the check of rights."""

    sql: str
    required_role: int
    reads: frozenset[str]
    writes: frozenset[str]


def written_heads(changes: Iterable[list[Change]]) -> set[Head]:
    """Return the tables of a transaction's changes with their columns, after all changes were decoded.

    Raises:
        UsageError: the changes cannot be decoded.
    """
    try:
        return {(change.table, change.columns) for piece in changes for change in piece}
    except EntryMalformedError as error:
        raise UsageError(f"the changes of the prepared transaction cannot be read: {error}") from error


def check_prepared(
    prepared: Prepared,  # the transaction
    heads: set[Head],  # the tables that it has changed; see ``written_heads``
    applied: Mapping[str, int],  # the vector of commits that the node has applied
    known: KnownSchema,  # the tables of the schema in force
    rights: Rights | None,  # the user's rights; None if the user may do everything
    *,
    is_nodes: bool = False,  # whether it was executed on another node's file, which may have more commits
) -> None:
    """Check a transaction that a program has prepared against the node's own file.

    Raises:
        UnavailableError: the base has commits that another node had applied, and this node has not.
        UsageError: the base has commits that the program cannot have read.
        ConflictError: a changed table is missing or has other columns: the schema has changed since.
        ForbiddenError: the user may not read or write one of the tables.
    """
    late = [f"{leader}{tick}" for leader, tick in prepared.base.items() if applied.get(leader, 0) < tick]
    if late:
        raise (UnavailableError if is_nodes else UsageError)(
            f"the transaction depends on {', '.join(late)}, which this node has not applied; it did not happen: run it "
            "again"
        )
    for name, columns in heads:
        table = known.tables.by_name.get(name)
        if table is None or columns != table.columns:
            raise ConflictError(
                f"table {name} was altered or dropped since the transaction began; the transaction did not happen: run "
                "it again",
                table="schema",
            )
    if rights is None:
        return
    written = {name for name, _ in heads}
    keys = prepared.access_set
    indexes = {index.object: index.table for index in known.schema.roots.values() if isinstance(index, Index)}
    reads = _tables(keys.read_points, indexes) | _tables((low for low, _ in keys.read_ranges), indexes)
    written |= _tables(keys.write_points, indexes) | _tables((low for low, _ in keys.write_ranges), indexes)
    needs = READER if prepared.readonly else WRITER
    rights.check(_AsStatement("COMMIT", needs, frozenset(reads), frozenset(written)))


def _tables(keys: Iterable[bytes], indexes: Mapping[str, str]) -> set[str]:
    """Return the tables to which keys belong; an unknown object counts as a table with the object's name."""
    names = {object_of(key) for key in keys}
    return {folded(indexes.get(name, name.partition(":")[2])) for name in names if not name.startswith("e:")}
