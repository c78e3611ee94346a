"""The schemas of nodes' files, as this program has read them; shared by all sessions, because reading takes long.

Reading the definitions of 2,000 tables takes half a second, and a program may open a session for each request.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import apsw

from bedrockish.access_sets.analysis import Analysis
from bedrockish.access_sets.table_layout import Tables
from bedrockish.common.forks import watch_forks
from bedrockish.engine.execution.executor import KnownSchema
from bedrockish.engine.statements.expansion import Expansion
from bedrockish.engine.storage import system_tables as system
from bedrockish.local.page import PublishedFacts
from bedrockish_journal.model.membership import Membership, read_membership

FILES_MAX = 4  # the most files whose schemas are kept


@dataclass(frozen=True, slots=True, eq=False)
class FileSchema:
    """The schema and membership of one snapshot of a file."""

    known: KnownSchema  # the schema, for all connections to the file
    membership: Membership  # the cluster's members and users
    version: int  # the version of the schema
    node: str  # the name of the file's node

    @property
    def is_learner(self) -> bool:
        """Return whether the file's node is a learner."""
        member = self.membership.members.get(self.node)
        return member is not None and not member.voter


class _FileSchemas:
    """The newest schema by file and node process: after a crash, the same version may stand for another schema."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: OrderedDict[tuple[int, ...], FileSchema] = OrderedDict()
        watch_forks(self)

    def after_fork(self) -> None:
        """Replace the lock, because another thread of the parent may have held it."""
        self._lock = threading.Lock()

    def read(self, db: apsw.Connection, facts: PublishedFacts) -> FileSchema:
        """Return the schema and the membership of a connection's snapshot.

        Args:
            db: a connection in a read transaction: the version and the definitions are read by several statements.
            facts: the facts of the node's page under which the connection was opened.
        """
        assert db.in_transaction, "otherwise the schema could change between two statements"
        key = facts.device, facts.inode, facts.generation, facts.process_start
        version, node = int(system.get_meta(db, "schema_version")), str(system.get_meta(db, "node"))
        membership = read_membership(system.get_meta(db, "membership"))
        with self._lock:
            newest = self._newest.get(key)
            if newest is not None and newest.version == version:
                known = newest.known
            else:
                known = _read(db, newest.known if newest is not None else None)
            made = FileSchema(known, membership, version, node)
            if newest is None or newest.version <= version:
                self._newest[key] = made
                self._newest.move_to_end(key)
            while len(self._newest) > FILES_MAX:
                self._newest.popitem(last=False)
        return made


def _read(db: apsw.Connection, before: KnownSchema | None) -> KnownSchema:
    """Read a schema; definitions that are the same as ``before`` are not read again."""
    tables = Tables(db, before.tables if before is not None else None)
    schema = Analysis(db, lambda _db: None, before.schema if before is not None else None, tables.definitions).schema
    return KnownSchema(tables, schema, Expansion(tables.definitions, before.expansion if before is not None else None))


FILE_SCHEMAS = _FileSchemas()
