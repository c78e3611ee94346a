"""Verifies the journals of one or several nodes: each against the laws, and all against each other.

Each file is read once in the order in which its node applied the entries (``bedrockish_journal.verify.entry_rules`` has
the laws); then all files are compared by timeline, and all transactions with each other (``conflicts``). No claim of a
file is trusted: hashes are computed from the stored bytes.
"""

import contextlib
import heapq
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

import apsw

from bedrockish_journal.model.errors import EntryMalformedError, JournalFileError
from bedrockish_journal.model.laws import LAWS, Finding, missing_files
from bedrockish_journal.model.membership import Membership, read_membership
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.storage.file_claims import Claims, PrunedBeginning, disagreements, read_claims
from bedrockish_journal.storage.pruning import marks
from bedrockish_journal.storage.row import JournalRow
from bedrockish_journal.storage.store import applied, find_places, heads, open_readonly, read_meta, scan_stored
from bedrockish_journal.verify.conflicts import Conflicts
from bedrockish_journal.verify.entry_rules import EntryRules
from bedrockish_journal.verify.exactly_once import Commands
from bedrockish_journal.verify.snapshots import TransactionSnapshots

Source = str | os.PathLike[str] | apsw.Connection
Progress = Callable[[str, int], None]
PROGRESS_EVERY = 10_000  # number of entries between two calls of ``progress``


@dataclass(frozen=True, slots=True)
class FileCounts:
    """The checked content of one file."""

    node: str  # the node that has the file
    path: str  # the path of the file
    entries: int  # the number of entries
    repeats: int  # the number of entries that are second labels
    adopted: int  # the number of adopted entries
    applied: dict[str, int]  # the vector of all entries
    nodes: list[str]  # every node that leads a timeline or ever was a member
    # The last removed tick of each timeline; the entries after it are verified.
    removed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification."""

    findings: list[Finding]  # all faults; empty if the journals keep the laws
    counts: list[FileCounts]  # the counts of each file
    # Node -> the spans (leader, first tick, last tick) that other files have and its file lacks. These are not faults,
    # because the node may not have received the entries yet.
    lacks: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    # The laws that were not checked, each with the option or file that it needs.
    unseen: dict[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return whether the journals keep the laws that were checked."""
        return not self.findings


def verify(sources: Sequence[Source], progress: Progress | None = None) -> Verification:
    """Verify journals, each for itself and against each other, and return the result.

    Each file is read in one snapshot, so the files of running nodes can be given.

    Args:
        sources: paths of nodes' files, or connections to them that are not inside a transaction.
        progress: called with a node and the number of its entries read so far, now and then.

    Raises:
        JournalFileError: a file has no journal, a text in it is not UTF-8, or SQLite cannot read it.
    """
    files = ", ".join(one.filename if isinstance(one, apsw.Connection) else os.fspath(one) for one in sources)
    try:
        return _verify(sources, progress)
    except (apsw.CorruptError, apsw.SQLError) as error:  # a damaged page, or a table of the node with other columns
        raise JournalFileError(
            files,
            f"the journal of {files} cannot be read ({error}): the file is damaged or was altered; restore it from a "
            "backup or fill the node again",
        ) from error
    except UnicodeDecodeError as error:
        raise JournalFileError(
            files,
            f"a text in the journal of {files} is not UTF-8 ({error}), which no node writes: the file is damaged or "
            "was altered; compare with another node's file, or with a backup",
        ) from None


class _File(NamedTuple):
    """A file that is open for reading."""

    node: str
    path: str
    db: apsw.Connection
    removed: dict[str, PrunedBeginning]  # the marks of removed entries; empty if they are malformed


def _verify(sources: Sequence[Source], progress: Progress | None) -> Verification:
    findings: list[Finding] = []
    counts: list[FileCounts] = []
    with contextlib.ExitStack() as stack:
        files: list[_File] = []
        for source in sources:
            files.append(_open(source, stack, [file.node for file in files], findings))
        members: dict[int, dict[frozenset[str], list[str]]] = {}
        conflicts, snapshots, retired = Conflicts(), TransactionSnapshots(), dict[str, int]()
        claims: dict[str, Claims] = {}
        stack.callback(conflicts.close)
        for file in files:
            claims[file.node] = claim = read_claims(file.db.execute, file.node)
            findings += claim.wrong
            is_checked = _in_first_file(files[0].db) if counts else lambda _row: False
            rules, count = _verify_one(file, findings, progress, is_checked, (conflicts, snapshots), claim.memberships)
            counts.append(count)
            for leader, version in rules.retired.items():
                retired[leader] = min(version, retired.get(leader, version))
            for version, voters in rules.memberships.items():
                who = frozenset(name for name, votes in voters.items() if votes)
                members.setdefault(version, {}).setdefault(who, []).append(file.node)
        findings += _other_members(members)
        findings += disagreements(claims)
        nodes = ", ".join(file.node for file in files)
        findings += conflicts.check(nodes, _horizon(files, counts), retired)
        findings += snapshots.check(nodes, retired, partial(_places_of, files))
        lacks = _compare(files, findings) if len(files) > 1 else {}
        _verify_own_tails(files, counts, findings)
    return Verification(findings, counts, lacks, _unseen(counts))


def _unseen(counts: list[FileCounts]) -> dict[str, str]:
    """Return the laws that were not checked, each with the option or file that it needs."""
    leaders = {leader for count in counts for leader in count.applied}
    found = {"tables": "--tables", "anchor": "--anchor"} | missing_files([count.node for count in counts], leaders)
    return {law.name: found[law.name] for law in LAWS if law.name in found}


def _places_of(files: list[_File], txid: Txid) -> list[tuple[str, int]]:
    """Return the places of a transaction in all files."""
    places = {place for file in files for place in find_places(file.db, txid)}
    return sorted(place for place in places if [*map(type, place)] == [str, int])


def _open(source: Source, stack: contextlib.ExitStack, taken: list[str], findings: list[Finding]) -> _File:
    """Open a file until the end of ``stack``, and read its marks; ``taken`` are the names of the other files' nodes."""
    if isinstance(source, apsw.Connection):
        db, path = source, source.filename
    else:
        db, path = open_readonly(source), os.fspath(source)
        stack.callback(db.close)
    db.execute("BEGIN")
    stack.callback(_end, db)
    db.execute("SELECT 1 FROM bedrockish_journal LIMIT 1").fetchall()  # takes the read snapshot now
    owner = read_meta(db, "node")
    name = owner if isinstance(owner, str) else os.path.basename(path) or "memory"
    node = name if name not in taken else f"{name} ({path})"
    try:
        removed = marks(db)
    except EntryMalformedError as error:
        findings.append(Finding("bytes", node, text=str(error)))
        removed = {}
    return _File(node, path, db, removed)


def _end(db: apsw.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")


def known_nodes(db: apsw.Connection) -> list[str]:
    """Return the nodes that founded the cluster or lead a timeline, sorted, without reading the journal."""
    founding = read_meta(db, "bootstrap")
    try:
        members = read_membership(founding).members if isinstance(founding, bytes) else {}
    except EntryMalformedError:  # ``verify`` reports it; the names of timelines are enough to print vectors
        members = {}
    return sorted({*members, *applied(db)})


def _in_first_file(first: apsw.Connection) -> Callable[[JournalRow], bool]:
    """Return a predicate: whether the first file has an entry with the same place, hash and body.

    The changes of such an entry were checked there, and are not decoded again.
    """
    query = "SELECT 1 FROM bedrockish_journal WHERE leader = ? AND tick = ? AND hash = ? AND body = ?"

    def is_checked(row: JournalRow) -> bool:
        return first.execute(query, (row.leader, row.tick, row.hash, row.body)).fetchone() is not None

    return is_checked


def _other_members(members: dict[int, dict[frozenset[str], list[str]]]) -> Iterator[Finding]:
    """Yield a finding for each membership whose voters differ between files."""
    for version, said in sorted(members.items()):
        if len(said) > 1:
            texts = "; ".join(f"{', '.join(sorted(who))} in the files of {', '.join(of)}" for who, of in said.items())
            node = min(said.values(), key=len)[0]
            yield Finding(
                "members", node, text=f"the voters of membership {version} are not the same in all files: {texts}"
            )


def _verify_one(
    file: _File,
    findings: list[Finding],
    progress: Progress | None,
    is_checked: Callable[[JournalRow], bool],
    together: tuple[Conflicts, TransactionSnapshots],
    memberships: Mapping[int, Membership],
) -> tuple[EntryRules, FileCounts]:
    node, path, db, removed = file
    founding = read_meta(db, "bootstrap")

    def original(clock: int, origin: str, before: int) -> bytes | None:
        query = "SELECT body FROM bedrockish_journal WHERE clock = ? AND origin = ? AND repeat = 0 AND seq < ?"
        row = db.execute(query, (clock, origin, before)).fetchone() if clock < 1 << 63 else None
        return None if row is None else row[0]

    founded = founding if isinstance(founding, bytes) else None
    rules = EntryRules(node, founded, original, removed, is_checked=is_checked, memberships=memberships)
    findings.extend(rules.begin())
    commands = Commands(node)
    for row in scan_stored(db):
        if row.is_well_typed:
            findings.extend(rules.check(row))
            commands.add(row, rules.entry)
            if rules.entry is not None and not rules.was_checked:
                for one in together:
                    one.add(rules.entry)
        else:
            commands.add(row, None)
            text = f"row {row.seq} of the journal has values of types that a journal never has"
            findings.append(Finding("columns", node, text=text))
        if progress is not None and rules.entries % PROGRESS_EVERY == 0:
            progress(node, rules.entries)
    findings.extend(rules.end())
    findings.extend(_twice(node, db))
    findings.extend(commands.check(db))
    commands.close()
    if progress is not None:
        progress(node, rules.entries)
    applied_here = dict(sorted(rules.applied.items()))
    begins = {leader: mark.tick for leader, mark in sorted(removed.items())}
    counts = FileCounts(node, path, rules.entries, rules.repeats, rules.adopted, applied_here, rules.nodes, begins)
    return rules, counts


def _horizon(files: list[_File], counts: list[FileCounts]) -> int:
    """Return a clock above which no entry was removed from all files with its timeline; 0 without such a removal."""
    least: dict[str, int] = {}
    for file, count in zip(files, counts, strict=True):
        for leader, tick in count.applied.items():
            mark = file.removed.get(leader)
            if mark is not None and tick == mark.tick:
                continue  # the file has no entry of the timeline; another law checks its mark
            clock = 0 if mark is None else mark.clock
            least[leader] = min(clock, least.get(leader, clock))
    return max(least.values(), default=0)


# NOT INDEXED, because the unique index that should prevent duplicates may itself be damaged.
_TWICE = """SELECT min(leader), min(tick), clock, origin, count(*) FROM main.bedrockish_journal NOT INDEXED
  WHERE repeat = 0 GROUP BY clock, origin HAVING count(*) > 1"""


def _twice(node: str, db: apsw.Connection) -> Iterator[Finding]:
    """Yield the transactions whose changes were applied more than once."""
    for leader, tick, clock, origin, times in db.execute(_TWICE):
        txid = f"{origin}-{clock:x}" if isinstance(clock, int) else str(origin)
        text = f"the transaction of {leader}{tick} was applied {times} times"
        yield Finding("txid", node, leader, tick, txid, text=text)


def _compare(files: list[_File], findings: list[Finding]) -> dict[str, list[tuple[str, int, int]]]:
    """Compare all journals by timeline; add forks to the findings, and return the spans that each node lacks and has
    not removed itself.
    """
    removed = {file.node: file.removed for file in files}
    lacks: dict[str, list[tuple[str, int, int]]] = {}
    merged = heapq.merge(*(heapq.merge(_places(file), _marks(file)) for file in files))
    for (leader, tick), group in groupby(merged, key=itemgetter(0, 1)):
        hashes: dict[bytes, list[str]] = {}
        for _, _, node, digest in group:
            hashes.setdefault(digest, []).append(node)
        if len(hashes) > 1:
            versions = ", ".join(f"{digest.hex()[:12]}… at {', '.join(nodes)}" for digest, nodes in hashes.items())
            text = f"{leader}{tick} is not the same everywhere: {versions}"
            findings.append(Finding("fork", min(hashes.values(), key=len)[0], leader, tick, text=text))
        for node in removed.keys() - {*chain(*hashes.values())}:
            mark = removed[node].get(leader)
            if tick > (0 if mark is None else mark.tick):
                spans = lacks.setdefault(node, [])
                goes_on = bool(spans) and (spans[-1][0], spans[-1][2]) == (leader, tick - 1)
                first = spans.pop()[1] if goes_on else tick
                spans.append((leader, first, tick))
    return dict(sorted(lacks.items()))


def _places(file: _File) -> Iterator[tuple[str, int, str, bytes]]:
    query = """SELECT leader, tick, hash FROM bedrockish_journal
               WHERE typeof(leader) = 'text' AND typeof(tick) = 'integer' AND typeof(hash) = 'blob'
               ORDER BY leader, tick"""
    for leader, tick, digest in file.db.execute(query):
        yield leader, tick, file.node, digest


def _marks(file: _File) -> list[tuple[str, int, str, bytes]]:
    """Return the places and hashes of the last removed entries of a file, which must be the same in all files."""
    return sorted((leader, mark.tick, file.node, mark.hash) for leader, mark in file.removed.items())


def _verify_own_tails(files: list[_File], counts: list[FileCounts], findings: list[Finding]) -> None:
    """Check that no file has more of a node's timeline than the node itself, whose file has each entry first.

    The end of the node's timeline is read again, after all other files, because the nodes may be running.
    """
    for node, _, db, _ in files:
        _end(db)
        own, _ = heads(db).get(node, (0, b""))
        if type(own) is not int:
            continue  # a finding names this row
        most = max((count.applied.get(node, 0) for count in counts if count.node != node), default=0)
        if most > own:
            holders = ", ".join(count.node for count in counts if count.applied.get(node, 0) > own)
            text = f"{node} has lost the end of its own timeline: it ends at {node}{own}, {holders} has {node}{most}"
            findings.append(Finding("lost", node, node, most, text=text))
