"""Votes of this node, and pieces of large transactions, as rows of the open batch."""

import apsw

from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Vote
from bedrockish.engine.batch import Batch
from bedrockish.engine.sqlite.errors import broken
from bedrockish.engine.storage import system_tables as system
from bedrockish_journal.model.transaction import Txid


class StoredVotes:
    """The votes and pieces in the file, read on the writing connection and written in its batch."""

    def __init__(self, db: apsw.Connection, batch: Batch) -> None:
        self._db, self._batch = db, batch

    def save(self, vote: Vote, parts: tuple[Part, ...] | None = None) -> None:
        """Save a vote in the open batch; it replaces an earlier one on the same transaction.

        Args:
            parts: the parts of the transaction's body, stored in its place; the pieces among them are saved already.
        """
        # Copied, because the core may change its vote later, and ``Batch.redo`` must write the vote as it is now.
        copy = Vote(vote.txid, vote.transaction, vote.held, vote.promised, vote.accepted)
        self._batch.write(system.save_vote, self._db, copy, parts)
        if parts is None and vote.transaction is not None:
            self._batch.size += len(vote.transaction.body)

    def drop(self, txid: Txid) -> None:
        """Delete a vote in the open batch."""
        self._batch.write(system.drop_vote, self._db, txid)

    def save_piece(self, digest: bytes, data: bytes) -> None:
        """Save a piece of a transaction in the open batch."""
        self._batch.write(system.save_piece, self._db, digest, data)
        self._batch.size += len(data)

    def drop_pieces(self, digests: tuple[bytes, ...]) -> None:
        """Delete pieces in the open batch."""
        self._batch.write(system.drop_pieces, self._db, digests)

    def assemble(self, parts: tuple[Part, ...]) -> bytes:
        """Return the body of a transaction, given its parts; the pieces among these are saved.

        Raises:
            DamagedError: a piece is missing; the node must stop.
        """
        self._batch.wait_for_writer()
        try:
            return system.assemble(self._db, parts)
        except apsw.Error as error:
            raise broken(error) from error
