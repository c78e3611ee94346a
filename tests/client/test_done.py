"""An import that continues finds its earlier commands in the journal."""

from typing import Any, cast

import apsw
import trio

from bedrockish.client.trio_client import Client
from bedrockish.transfer.load_database import commands_done
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.storage import store


class Node:
    """A node's file, asked as a node is."""

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        store.create(self.db)

    async def execute(self, sql: str, params: Any, *, read: str) -> list[Any]:
        assert read == "strict"
        return self.db.execute(sql, params).fetchall()


def test_import_step_counts_as_done_if_it_shared_a_transaction() -> None:
    """Steps of several imports that wait for one key may share a transaction."""
    node = Node()
    joined = (("run-2", b""), ("other-1", b""))
    transaction = Transaction(
        Txid(1, "A"), {}, 0, 0, 0, "run-1", "serializable", ROWS, AccessSet(), b"", b"", joined=joined
    )
    store.append(node.db, Entry("A", 1, {"A": 1}, transaction, None, GENESIS), repeat=False, applied_ms=0)
    assert trio.run(commands_done, cast(Client, node), "run-") == {"run-1", "run-2"}
