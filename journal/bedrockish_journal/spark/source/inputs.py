"""The input of audits: nodes' files, running nodes and exports, side by side."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.export.manifest import files_of, is_export, read_manifest
from bedrockish_journal.spark.source.feeds import expand, is_url, nodes_of, open_feed
from bedrockish_journal.spark.source.plans import bounds
from bedrockish_journal.spark.source.tables import TABLES

ENTRY_BYTES = 500  # estimate of a file's bytes per entry with small commits


@dataclass(frozen=True, slots=True)
class Inputs:
    """The sources from which the journal of each node is read."""

    files: dict[str, str] = field(default_factory=dict)  # node -> path of its file, or its URL
    exports: dict[str, str] = field(default_factory=dict)  # node -> directory of an export that has its journal

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, sorted."""
        return sorted({*self.files, *self.exports})

    @property
    def size(self) -> int:
        """The approximate number of bytes to read; running nodes are asked for their numbers of entries.

        Raises:
            JournalError: a journal cannot be read.
            BedrockishError: a node cannot be reached.
        """
        found = [
            _entries(path) * ENTRY_BYTES if is_url(path) else os.path.getsize(path) for path in self.files.values()
        ]
        for directory in set(self.exports.values()):
            found += [os.path.getsize(name) for table in TABLES for name in files_of(directory, table)]
        return sum(found)


def _entries(path: str) -> int:
    with open_feed(path) as feed:
        return sum(high - low + 1 for low, high in bounds(feed.ask).values())


def find_inputs(paths: Sequence[str]) -> Inputs:
    """Return the inputs for paths of nodes' files, directories of files, exports, and running nodes.

    Raises:
        JournalError: a path is missing or is not such an input, or two have the journal of the same node.
    """
    exports: dict[str, str] = {}
    plain: list[str] = []
    for path in paths:
        if not is_export(path):
            plain.append(path)
            continue
        for node in read_manifest(path).vectors:
            if node in exports:
                raise JournalError(f"{exports[node]} and {path} both have node {node}; give its journal once")
            exports[node] = os.path.abspath(path)
    files = nodes_of(expand(",".join(plain))) if plain or not exports else {}
    for node in files:
        if node in exports:
            raise JournalError(f"{exports[node]} and {files[node]} both have node {node}; give its journal once")
    return Inputs(files, exports)
