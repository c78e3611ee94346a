"""A backup drill of a continuous backup: checks that every moment that its directory covers can be restored.

Snapshots and segments that continue each other are a run; a new run begins where the nodes no longer had the next
entries. In a run, each snapshot must equal the one before it with the entries in between applied. The first and the
last snapshot, each with the later segments applied, must give the same database. So each page is read, and each entry
in a segment is hashed and applied twice. The first snapshot of a run is checked with its own journal.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from bedrockish_journal.model.errors import FileMissingError, JournalError
from bedrockish_journal.model.moment import Moment
from bedrockish_journal.model.vector import Vector, covers, merge
from bedrockish_journal.storage.pruning import marks
from bedrockish_journal.storage.segment import ends
from bedrockish_journal.storage.store import reading
from bedrockish_journal.verify.beginning import latest, safe_clock
from bedrockish_journal.verify.differences import differences
from bedrockish_journal.verify.drill import FAULTS_MAX, Drill, Said, drill, pages
from bedrockish_journal.verify.replay import Prepare, digest
from bedrockish_journal.verify.restore import files_in, restore
from bedrockish_journal.verify.tables import why_not_whole


@dataclass(slots=True)
class DirectoryDrill(Drill):
    """The result of a drill of a continuous backup."""

    snapshots: int = 0  # the number of snapshots
    since: int = 0  # the first clock that can be restored; 0 if every moment since the cluster began can be restored
    # Pairs of clocks between which no moment can be restored, because the nodes no longer had the entries.
    gaps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _File:
    """A snapshot or a segment as it was when the drill began; the last segment may grow during the drill."""

    path: Path
    begins: Vector  # the tick of each timeline after which the file's journal begins
    ends: Vector  # the last tick of each timeline at the end of the file's journal
    safe: int  # the clock up to which the file is complete
    latest: int  # the greatest clock in the file
    entries: int  # the number of entries in the file's journal

    @property
    def number(self) -> str:
        """The number in the file's name, which a snapshot and its segment share."""
        return self.path.stem[-6:]

    @property
    def moment(self) -> Moment:
        """The moment of a snapshot, as a vector."""
        return Moment(self.path.name, vector=self.ends)


@dataclass(frozen=True, slots=True)
class _Run:
    """Snapshots and segments that continue each other."""

    snapshots: list[_File] = field(default_factory=list)
    segments: list[_File] = field(default_factory=list)

    @property
    def paths(self) -> list[Path]:
        """The paths of the segments."""
        return [one.path for one in self.segments]

    @property
    def end(self) -> Moment | None:
        """The last moment up to which the run is complete; None if it has no segment."""
        return Moment("the end", clock=self.segments[-1].safe) if self.segments else None


def drill_directory(
    folder: str | os.PathLike[str],  # the directory of the continuous backup
    *,
    # An older backup, for a first snapshot whose journal has lost its beginning.
    older: str | os.PathLike[str] | None = None,
    prepare: Prepare | None = None,  # registers the functions and collations of plugins on a connection
    say: Said = lambda _: None,  # called with each step before it begins
) -> DirectoryDrill:
    """Verify a continuous backup, which may grow during the drill, and return the result.

    Raises:
        FileMissingError: the directory has no snapshot, or an old file was removed during the drill.
        MomentError: the older backup is not older.
    """
    folder = Path(folder)
    found = DirectoryDrill(str(folder))
    snapshots, segments = files_in(folder)
    say("reading every page")
    files = dict[Path, _File]()
    for path in (*snapshots, *segments):
        files[path] = _examine(path, found)
    if found.faults:
        return found
    found.snapshots, found.unproven = len(snapshots), ""
    runs = _runs([files[path] for path in snapshots], [files[path] for path in segments], found)
    for run in runs:
        if not found.faults:
            _drill_run(run, older if run is runs[0] else None, found, prepare, say)
    with reading(snapshots[0]) as first:
        found.since = latest(first) if why_not_whole(first) else 0
    found.complete = max(one.safe for one in files.values())
    found.latest = max(one.latest for one in files.values())
    return found


def _examine(path: Path, found: Drill) -> _File:
    """Check every page of a file, and return the file's beginning, end and clocks."""
    try:
        found.faults += [f"{path.name}: {text}" for text in pages(path)]
        with reading(path) as db:
            begins = {leader: mark.tick for leader, mark in marks(db).items()}
            until = {leader: tick for leader, (tick, _) in ends(db).items()}
            (entries,) = db.execute("SELECT count(*) FROM bedrockish_journal").fetchone() or (0,)
            return _File(path, begins, until, safe_clock(db), latest(db), int(entries))
    except FileMissingError:
        raise
    except (JournalError, apsw.Error) as error:
        found.faults.append(f"{path.name} cannot be read: {error}")
        return _File(path, {}, {}, 0, 0, 0)


def _runs(snapshots: Sequence[_File], segments: Sequence[_File], found: DirectoryDrill) -> list[_Run]:
    """Return the runs of snapshots and segments that continue each other, and record the gaps between the runs."""
    by_number = {one.number: one for one in segments}
    runs = [_Run()]
    reached: Vector = {}
    for snapshot in snapshots:
        segment = by_number.get(snapshot.number)
        if runs[-1].snapshots and segment is not None and not covers(reached, segment.begins):
            before = runs[-1]
            until = before.segments[-1].safe if before.segments else before.snapshots[-1].latest
            found.gaps.append((until, snapshot.latest))
            if segment.begins != snapshot.ends:  # after a gap, a backup begins a segment at a new snapshot
                found.faults.append(
                    f"{segment.path.name} continues entries that are in no file: an earlier file is missing"
                )
            runs.append(_Run())
            reached = {}
        runs[-1].snapshots.append(snapshot)
        reached = merge(reached, snapshot.ends)
        if segment is not None:
            runs[-1].segments.append(segment)
            reached = merge(reached, segment.ends)
    return runs


def _drill_run(
    run: _Run, older: str | os.PathLike[str] | None, found: DirectoryDrill, prepare: Prepare | None, say: Said
) -> None:
    first = drill(run.snapshots[0].path, older=older, prepare=prepare, say=say)
    found.faults += [f"{run.snapshots[0].path.name}: {fault}" for fault in first.faults]
    found.unproven = first.unproven or found.unproven
    found.digest = first.digest
    found.entries += first.entries + sum(one.entries for one in run.segments)
    if found.faults:
        return
    for before, after in zip(run.snapshots, run.snapshots[1:], strict=False):
        say(f"replaying from {before.path.name} to {after.path.name}")
        _compare(run, before, after, found, prepare)
    if run.end is None or found.faults:
        return
    say("replaying to the end")
    fitting = [one for one in run.snapshots if run.end.includes(one.ends, one.latest)]
    made = dict[str, str]()
    for one in {one.path: one for one in (*fitting[:1], *fitting[-1:])}.values():
        made[_restored(run, one, found, prepare)] = one.path.name
    if len(made) > 1 and not found.faults:
        names = " and ".join(made.values())
        found.faults.append(f"tables: {names}, each with the journal after it applied, give different databases")


def _compare(run: _Run, before: _File, after: _File, found: Drill, prepare: Prepare | None) -> None:
    if not covers(after.ends, before.ends):  # a snapshot of a node that was behind; only the ends are compared
        return
    with tempfile.TemporaryDirectory(prefix="bedrockish-") as folder:
        proof = Path(folder, "proof.db")
        try:
            journals = [one.path for one in run.segments if one.number < after.number] + [after.path]
            report = restore(before.path, proof, journals=journals, until=after.moment, prepare=prepare)
            if report.digest != digest(after.path):
                told = differences(str(after.path), str(proof), FAULTS_MAX)
                found.faults += [f"{after.path.name}: tables: {one.text}" for one in told]
        except (apsw.Error, JournalError) as error:
            found.faults.append(f"{after.path.name} does not follow from {before.path.name}: {error}")


def _restored(run: _Run, one: _File, found: Drill, prepare: Prepare | None) -> str:
    """Restore the end of a run from one of its snapshots and all its segments, and return the digest."""
    with tempfile.TemporaryDirectory(prefix="bedrockish-") as folder:
        try:
            found.digest = restore(
                one.path, Path(folder, "made.db"), journals=run.paths, until=run.end, prepare=prepare
            ).digest
        except FileMissingError:
            raise
        except (apsw.Error, JournalError) as error:
            found.faults.append(f"it cannot be restored from {one.path.name} on: {error}")
        return found.digest
