"""Lookups in the node's file that the driver makes for the core: the core keeps the recent commits only."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bedrockish.core.state.packed_commits import Place
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import Vector


@dataclass(frozen=True, slots=True)
class FileLookups:
    """The functions of the driver; each tells of the file as the effects of earlier steps have made it.

    Attributes:
        find_command: tells what a command has become: None if it never happened, ``FORGOTTEN`` if the journal does not
            reach back as far as its id.
        has_applied: tells whether the journal has a transaction.
        find_places: tells under which places the journal has it.
        conflicts: tells whether an access set conflicts with an entry of the journal up to the ticks of the second
            vector, but for those that the first one has; None if it lacks one of them.
        compare_rows: tells why a transaction was not made of the rows that the tables here have; empty if it was; None
            if the driver is going to step ``Compared`` when it can tell. None instead of the function: this node has no
            tables to compare.
    """

    find_command: Callable[[str], Txid | None] = lambda _: None
    has_applied: Callable[[Txid], bool] = lambda _: False
    find_places: Callable[[Txid], Iterable[Place]] = lambda _: ()
    conflicts: Callable[[AccessSet, Vector, Vector], bool | None] = lambda *_: None
    compare_rows: Callable[[Transaction], str | None] | None = None


EMPTY_FILE = FileLookups()
