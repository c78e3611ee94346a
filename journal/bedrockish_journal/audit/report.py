"""The report of an audit, the same for every engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bedrockish_journal.audit.queries import FAULT, INFORMATION
from bedrockish_journal.model.access_set import object_of


class ReportedFinding(NamedTuple):
    """A finding as it is printed."""

    check: str  # the law (``bedrockish_journal.model.laws``)
    level: str  # ``fault``, or ``information`` for a state that honest journals can show as well
    node: str | None  # the nodes in whose files the law is broken, separated by commas
    leader: str | None  # the timeline of the entry
    tick: int | None  # the tick of the entry
    txid: str | None  # the transaction
    table: str | None  # the object of a conflict
    key: str | None  # the key of a conflict, in hexadecimal
    text: str  # the fault in a sentence


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
    findings: list[ReportedFinding]  # the first findings
    counts: dict[str, int]  # the number of all findings of each level


@dataclass(frozen=True, slots=True)
class UncheckedLaws:
    """The laws that were not checked, or not completely, each with the missing input."""

    laws: dict[str, str] = field(default_factory=dict)


def finding(law: str, row: Sequence[Any]) -> ReportedFinding:
    """Return the finding in a row of the result of ``queries.question``."""
    level, node, leader, tick, txid, key, text, *_ = row
    key = bytes(key) if key else None
    table = object_of(key) if key else None
    text = text.replace("the same key", table) if table else text
    return ReportedFinding(law, level, node or None, leader, tick, txid, table, key.hex() if key else None, text)


def counted(rows: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Return the number of findings of each level, which every row of a result has."""
    faults, information = rows[0][-2:] if rows else (0, 0)
    return {FAULT: int(faults), INFORMATION: int(information)}
