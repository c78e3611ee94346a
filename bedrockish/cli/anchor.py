"""``bedrockish anchor``: write the present ends of the journals to a file; and the option ``--anchor``."""

import contextlib
import fcntl
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import trio

from bedrockish.cli.url import DOWN_S, UrlCommand, url_of
from bedrockish.cli.words import labels
from bedrockish.client.trio_client import open_client, target_of
from bedrockish.common.durable_files import sync
from bedrockish.errors import BedrockishError, ProtocolMismatchError, UnavailableError, UsageError
from bedrockish_journal.model.anchor import FIRST, Anchor, AnchorStatement, line_hash, read_statement
from bedrockish_journal.storage.store import open_readonly
from bedrockish_journal.verify.anchored import Anchored, check_anchors, read_anchors

TIMEOUT_S = 10.0  # seconds for one node; a node that is behind is asked again until they are over
AGAIN_S = 0.1
BEGINNING = b'{"statement": '  # the beginning of each line


@click.command(cls=UrlCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def anchor(url: str, file: Path) -> None:
    """Add a line to FILE: the present end of each timeline of the journals, as a majority of the voters has it.

    Keep FILE where no user with write access to the nodes' files can write. 'bedrockish journal verify --anchor FILE'
    shows later that nothing before it was changed, removed or added.
    """
    target_of(url)
    with _Log(file) as log:
        made, missing = trio.run(_make, url, log.last())
        log.add(made.line())
    said = made.statement
    ends = labels({leader: tick for leader, (tick, _) in said.heads.items()})
    click.echo(f"anchor {said.number}: {ends}; confirmed by {', '.join(sorted(made.confirmed))}")
    for node, why in sorted(missing.items()):
        click.echo(f"{node} has not confirmed it: {why}", err=True)


class _Log:
    """An anchor file, to which one process at a time adds lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "_Log":
        try:
            is_new = not self._path.exists()
            self._file = open(self._path, "a+b")
            if is_new:
                sync(self._path.absolute().parent)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(f"another program adds to {self._path}; try again when it has ended") from None
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from error
        self._drop_torn()
        return self

    def _drop_torn(self) -> None:
        """Remove a last line without a line feed: its writer was killed before it reported the anchor.

        After a power cut, the line may end with zeros, or consist of them.

        A line that does not begin like an anchor stays: the user has named another file by mistake.
        """
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        torn = data[whole:].rstrip(b"\0")
        if whole < len(data) and torn[: len(BEGINNING)] == BEGINNING[: len(torn)]:
            self._file.truncate(whole)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._path.stat().st_size == 0:  # a new file, to which no anchor was added
            self._path.unlink()

    def last(self) -> Anchor | None:
        """Return the last anchor of the file; None if it has none."""
        anchors = read_anchors(self._path)
        return anchors[-1] if anchors else None

    def add(self, line: str) -> None:
        """Add a line, durably."""
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from error


async def _make(url: str, last: Anchor | None) -> tuple[Anchor, dict[str, str]]:
    """Return a new anchor, and the reasons of the voters that have not confirmed it."""
    async with open_client(url) as client:
        nodes = await client.nodes(timeout=TIMEOUT_S)
        facts = await client.upkeep({"do": "anchor"}, timeout=TIMEOUT_S)
    said = _statement(facts, last)
    if last is not None and said.cluster != last.statement.cluster:
        raise UsageError("the file has anchors of another cluster; keep a file for each")
    confirmed: dict[str, None] = {}
    missing: dict[str, str] = {}

    async def ask(node: str) -> None:
        try:
            bound_s = TIMEOUT_S if nodes[node]["up"] else DOWN_S
            await _confirm(url_of(url, nodes[node]), said, bound_s)
            confirmed[node] = None
        except BedrockishError as error:
            missing[node] = error.message
        except KeyError:
            missing[node] = "it is not a member any more"

    async with trio.open_nursery() as nursery:
        for node in said.voters:
            nursery.start_soon(ask, node)
    if len(confirmed) < said.quorum:
        why = "; ".join(f"{node}: {why}" for node, why in sorted(missing.items()))
        raise UnavailableError(
            f"only {len(confirmed)} of {len(said.voters)} voters confirm the ends of the journals ({why}); nothing "
            "was written"
        )
    return Anchor(said.text(), said, confirmed), missing


def _statement(facts: Mapping[str, Any], last: Anchor | None) -> AnchorStatement:
    try:
        said = AnchorStatement(
            cluster=facts["cluster"],
            number=1 if last is None else last.statement.number + 1,
            previous=FIRST if last is None else line_hash(last.line().encode()),
            wall_ms=time.time_ns() // 1_000_000,
            clock=facts["clock"],
            founders=facts["founders"],
            members=facts["members"],
            voters=tuple(facts["voters"]),
            heads={leader: (tick, digest) for leader, (tick, digest) in facts["heads"].items()},
        )
        return read_statement(said.text())
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ProtocolMismatchError(f"the node's answer is not the content of an anchor: {error}") from error


async def _confirm(url: str, said: AnchorStatement, bound_s: float) -> None:
    """Have a node compare the statement with its journal; ask again while the node lacks an entry."""
    until = trio.current_time() + bound_s
    async with open_client(url) as client:
        while True:
            try:
                await client.upkeep({"do": "anchor", "statement": said.text()}, timeout=bound_s)
                return
            except UnavailableError:
                if trio.current_time() > until:
                    raise
                await trio.sleep(AGAIN_S)


anchor_option = click.option(
    "--anchor",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also compare them with the anchors in this file, written by 'bedrockish anchor'.",
)


def compare_with_anchors(paths: Sequence[str | Path], file: Path | None) -> Anchored | None:
    """Compare files of nodes with the anchors in a file, and return the result; return None if no file is given.

    Raises:
        JournalError: a file cannot be read.
    """
    if file is None:
        return None
    anchors = read_anchors(file)
    with contextlib.ExitStack() as stack:
        files = {}
        for path in paths:
            files[str(path)] = db = open_readonly(path)
            stack.callback(db.close)
            db.execute("BEGIN")  # one snapshot for all reads
        return check_anchors(files, anchors)


def in_words(told: Anchored) -> str:
    """Return the result of the comparison as a line of a report."""
    text = f"{told.anchors} anchors with {told.places} places"
    return f"{text}, of which {told.removed} were removed to make room" if told.removed else text
