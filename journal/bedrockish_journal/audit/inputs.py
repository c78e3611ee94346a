"""The input of an audit: nodes' files and exports, side by side."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.export.manifest import is_export, read_manifest
from bedrockish_journal.spark.source.feeds import expand, nodes_of


@dataclass(frozen=True, slots=True)
class Inputs:
    """The sources from which the journal of each node is read."""

    files: dict[str, str] = field(default_factory=dict)  # node -> path of its file, or its URL
    exports: dict[str, str] = field(default_factory=dict)  # node -> directory of an export that has its journal

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, sorted."""
        return sorted({*self.files, *self.exports})


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
