"""The form of an export: a directory of Parquet files, and a manifest with the vector up to which it goes.

``<directory>/<table>/node=A/B-000000000001-000000020000.parquet`` has the rows of ticks 1 to 20000 of timeline B, by
node A's journal. A file belongs to the export if its ticks are within the manifest's vector. Files are written under
names that readers of Parquet ignore (``_….partial``), then renamed, and then the manifest is replaced. So a killed run
leaves at most files that do not belong to the export, and the next run removes them.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.source.plans import Span
from bedrockish_journal.spark.source.tables import TABLES
from bedrockish_journal.storage.segment import sync_folder

FORMAT = 1
MANIFEST, LOCK = "manifest.json", "_lock"
FOUNDING = "founding.parquet"
_RANGE = re.compile(r"(\w+)-(\d{12})-(\d{12})\.parquet")


class ExportError(JournalError):
    """Raised when a directory is not an export, or cannot be written as one. Its former content is unchanged."""


@dataclass(slots=True)
class Manifest:
    """The extent of an export."""

    vectors: dict[str, dict[str, int]] = field(default_factory=dict)  # for each node, the last tick of each timeline
    # For each node, the hash of the entry at that tick, in hexadecimal.
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)


def partial(path: Path) -> Path:
    """Return the name of an incomplete file: some readers ignore the prefix ``_``, others read ``*.parquet``."""
    return path.with_name(f"_{path.name}.partial")


def is_export(path: str) -> bool:
    """Return whether a path is a directory with a manifest in it."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def read_manifest(directory: str) -> Manifest:
    """Return the manifest of an export; an empty one if the directory has no manifest yet.

    Raises:
        ExportError: the manifest cannot be read, or was written by a newer version.
    """
    path = Path(directory, MANIFEST)
    try:
        packed = json.loads(path.read_text())
        if packed["format"] != FORMAT:
            raise ExportError(f"{path} is of format {packed['format']}, and this version knows {FORMAT}; update it")
        timelines: dict[str, dict[str, dict[str, object]]] = packed["nodes"]
        vectors = {node: {leader: int(str(end["tick"])) for leader, end in t.items()} for node, t in timelines.items()}
        hashes = {node: {leader: str(end["hash"]) for leader, end in t.items()} for node, t in timelines.items()}
    except FileNotFoundError:
        return Manifest()
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ExportError(f"{path} cannot be read ({error!r}); export again into a new directory") from error
    return Manifest(vectors, hashes)


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Replace the manifest atomically and durably; then the files within its vector belong to the export."""
    nodes = {
        node: {leader: {"tick": tick, "hash": manifest.hashes[node][leader]} for leader, tick in sorted(vector.items())}
        for node, vector in sorted(manifest.vectors.items())
    }
    packed = {"format": FORMAT, "nodes": nodes, "columns": {name: table.columns for name, table in TABLES.items()}}
    new = Path(directory, f"_{MANIFEST}")
    with new.open("w") as file:
        json.dump(packed, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    new.replace(Path(directory, MANIFEST))
    sync_folder(Path(directory))


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Lock a directory against other exports, and create it if it does not exist.

    Raises:
        ExportError: another export is writing, or the directory has files that no export wrote.
    """
    os.makedirs(directory, exist_ok=True)
    strangers = sorted({one.name for one in os.scandir(directory)} - {*TABLES, MANIFEST, f"_{MANIFEST}", LOCK})
    if strangers:
        raise ExportError(f"{directory} has {strangers[0]} in it, which no export wrote; name a new directory")
    with open(os.path.join(directory, LOCK), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExportError(f"another export is writing into {directory}; wait until it has ended") from error
        yield


def file_of(directory: str, table: str, node: str, span: Span | None) -> Path:
    """Return the path of a table's file for a range of ticks; without a range, for rows from before the journal."""
    name = FOUNDING if span is None else f"{span[0]}-{span[1]:012}-{span[2]:012}.parquet"
    return Path(directory, table, f"node={node}", name)


def files_of(directory: str, table: str, node: str | None = None) -> list[str]:
    """Return the files of a table that belong to an export, sorted; with ``node``, those of its journal only."""
    manifest, found = read_manifest(directory), _all_files(directory, table)
    return sorted(str(path) for path, owner in found if node in (None, owner) and _is_included(path, owner, manifest))


def clear(directory: str, manifest: Manifest) -> None:
    """Remove the files that killed runs left: files that do not belong to the export, and incomplete files."""
    for table in TABLES:
        for path, node in _all_files(directory, table):
            if not _is_included(path, node, manifest):
                path.unlink()
    Path(directory, f"_{MANIFEST}").unlink(missing_ok=True)


def _all_files(directory: str, table: str) -> Iterator[tuple[Path, str]]:
    for path in Path(directory, table).glob("node=*/*"):
        yield path, path.parent.name.removeprefix("node=")


def _is_included(path: Path, node: str, manifest: Manifest) -> bool:
    vector = manifest.vectors.get(node)
    if vector is None:
        return False
    if path.name == FOUNDING:
        return True
    ticks = _RANGE.fullmatch(path.name)
    return ticks is not None and int(ticks[3]) <= vector.get(ticks[1], 0)
