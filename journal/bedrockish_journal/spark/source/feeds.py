"""Journals in node files, in directories of node files, and at running nodes, with the same interface for all."""

import glob
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from bedrockish_journal.model.errors import FileMissingError, JournalError
from bedrockish_journal.model.vector import covers
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.spark.source.files import open_file_feed
from bedrockish_journal.spark.source.plans import Span, WantedEntries, bounds
from bedrockish_journal.storage.file_claims import Ask
from bedrockish_journal.storage.row import JournalRow

Access = Mapping[str, str]
NO_ACCESS: Access = {}
NODE = "bedrockish://"  # the beginning of a running node's URL
SUFFIXES = (".db", ".sqlite", ".sqlite3")  # suffixes of the files that are read in a directory


class OpenJournal(Protocol):
    """The open journal of one node."""

    @property
    def context(self) -> Context:
        """The state that all rows share: the node, the wanted columns and tables, and the entry decoded last."""

    @property
    def ask(self) -> Ask:
        """Runs a query on the journal, and returns the rows."""

    def scan(self, spans: Sequence[Span], wanted: WantedEntries) -> Generator[JournalRow]:
        """Yield the wanted entries of some ranges, by timeline and tick.

        Raises:
            JournalPrunedError: the beginning of a range was removed from the journal.
            JournalError: the end of a range is missing; or, with ``wanted.whole``, any tick of a range.
        """


def is_url(path: str) -> bool:
    """Return whether a path is the URL of a running node."""
    return "://" in path


def hides_members(path: str, context: Context) -> bool:
    """Return whether a running node changes entries about members and users for its caller, so that hashes differ.

    Only admins see these entries unchanged, and only they see the founding.
    """
    return is_url(path) and context.beginning.founding is None


def open_feed(path: str, access: Access = NO_ACCESS) -> AbstractContextManager[OpenJournal]:
    """Open the journal of a node: in its file, or at the node itself.

    Args:
        path: a file, or a client's URL.
        access: credentials that the URL lacks: user, password, ca, cert, key.

    Raises:
        JournalFileError: the file cannot be read as a node's file.
        BedrockishError: the node cannot be reached, or refuses.
    """
    if is_url(path):
        from bedrockish_journal.spark.source.live import open_node_feed  # only running nodes need the client

        return open_node_feed(path, access)
    return open_file_feed(path)


def expand(path: str) -> list[str]:
    """Return the files and URLs of a ``path`` option, sorted, without duplicates.

    The option has files, globs, directories and URLs, separated by commas.

    Raises:
        FileMissingError: a part names no file.
    """
    found: set[str] = set()
    for part in (piece.strip() for piece in path.split(",")):
        if not part:
            continue
        if is_url(part):
            if not part.lower().startswith(NODE):
                raise FileMissingError(
                    shown(part),
                    f"{shown(part)} is not the URL of a node; write {NODE}host:port, or a path without file://",
                )
            found.add(part)
            continue
        if os.path.isdir(part):
            names = [str(file) for file in Path(part).iterdir() if file.suffix in SUFFIXES and file.is_file()]
            if os.path.isfile(os.path.join(part, "manifest.json")):
                raise FileMissingError(part, f"{part} is an export; read its tables ({part}/commits …) as Parquet")
            if not names:
                raise FileMissingError(part, f"{part} has no file that ends in {', '.join(SUFFIXES)}; name the files")
        elif os.path.exists(part):
            names = [part]
        else:
            names = [name for name in glob.glob(part) if os.path.isfile(name)]
            if not names:
                raise FileMissingError(part, f"{part}: no such file; give the path of a node's database file")
        found.update(os.path.abspath(name) for name in names)
    if not found:
        raise FileMissingError(path, "the option 'path' is empty; give one or many node files, separated by commas")
    return sorted(found)


def shown(path: str) -> str:
    """Return a path or URL for messages, without user and password."""
    scheme, separator, rest = path.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else path


def nodes_of(
    paths: Sequence[str], access: Access = NO_ACCESS, *, newest: bool = False, clusters: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the path of each node's journal, after opening every one.

    Args:
        newest: of several copies of one node's journal, use the one that goes furthest instead of raising an error.
        clusters: cluster id -> path of its first journal; the cluster of the journals, if known, is added.

    Raises:
        JournalError: a journal cannot be read, or two are of the same node or of two clusters.
    """
    found: dict[str, str] = {}
    heads: dict[str, dict[str, int]] = {}
    clusters = {} if clusters is None else clusters
    for path in paths:
        with open_feed(path, access) as feed:
            node, cluster = feed.context.node, feed.context.cluster
            if cluster:
                clusters.setdefault(cluster, path)
            if len(clusters) > 1:  # their nodes may have the same names
                (one, first), (other, second) = clusters.items()
                raise JournalError(
                    f"{shown(first)} is of the cluster {one}, and {shown(second)} of the cluster {other}; read one "
                    "cluster at a time"
                )
            head = {leader: high for leader, (_, high) in bounds(feed.ask).items()} if newest else {}
        if node not in found or (newest and covers(head, heads[node])):
            found[node], heads[node] = path, head
        elif not newest:
            raise JournalError(
                f"{shown(found[node])} and {shown(path)} are both of node {node}; give one for each node, or "
                "copies=newest"
            )
        elif not covers(heads[node], head):
            raise JournalError(
                f"{shown(found[node])} and {shown(path)} of node {node} each lack entries of the other; audit both"
            )
    return found


def check_same(context: Context, node: str, cluster: str) -> None:
    """Check that a path still leads to the journal for which a read was planned.

    Raises:
        JournalError: the path leads to the journal of another node or cluster, which may have the same ticks.
    """
    if (context.node, context.cluster) != (node, cluster):
        raise JournalError(
            f"{shown(context.path)} has the journal of node {context.node} of the cluster {context.cluster}, and had "
            f"that of node {node} of the cluster {cluster} when the read was planned; read again"
        )
