"""Lookups in the node's file that the driver makes for the core, which keeps only recent commits in memory."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bedrockish.core.state.packed_commits import Place
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import Vector


@dataclass(frozen=True, slots=True)
class FileLookups:
    """The driver's functions that look things up in the file; they see the effects of all earlier steps."""

    # Returns the transaction of a command; None if the command never happened, ``FORGOTTEN`` if the journal does not
    # reach back to the age of its id.
    find_command: Callable[[str], Txid | None] = lambda _: None
    has_applied: Callable[[Txid], bool] = lambda _: False  # returns whether the journal has a transaction
    find_places: Callable[[Txid], Iterable[Place]] = lambda _: ()  # returns a transaction's places in the journal
    # Returns whether an access set conflicts with an entry of the journal after the first vector and up to the second;
    # None if the journal lacks one of these entries.
    conflicts: Callable[[AccessSet, Vector, Vector], bool | None] = lambda *_: None
    # Returns why the before-images of a transaction differ from the rows here; empty if they are equal; None if the
    # comparison takes longer, in which case the driver steps ``Compared`` at its end. The field is None where no tables
    # exist.
    compare_rows: Callable[[Transaction], str | None] | None = None


EMPTY_FILE = FileLookups()
