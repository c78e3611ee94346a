"""``bedrockish anchor``: write the present ends of the journals to a file, signed by the nodes."""

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import trio

from bedrockish.cli.url import DOWN_S, UrlCommand, url_of
from bedrockish.cli.words import labels
from bedrockish.client.trio_client import open_client, target_of
from bedrockish.errors import BedrockishError, ProtocolMismatchError, UnavailableError, UsageError
from bedrockish_journal.model.anchor import (
    FIRST,
    Anchor,
    Signature,
    Statement,
    line_hash,
    read_signature,
    read_statement,
)
from bedrockish_journal.storage.anchor_file import read_anchors

TIMEOUT_S = 10.0  # for each node; a node that is behind is asked again until then
AGAIN_S = 0.1
BEGINNING = b'{"statement": '  # the beginning of each line


@click.command(cls=UrlCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def anchor(url: str, file: Path) -> None:
    """Add a line to FILE: the present end of each timeline of the journals, signed by the nodes' certificates.

    Keep FILE where no user with write access to the nodes' files can write. 'bedrockish journal verify --anchor FILE'
    and 'bedrockish audit --anchor FILE' show later that nothing before it was changed, removed or added.
    """
    target_of(url)
    with _Log(file) as log:
        made, missing = trio.run(_make, url, log.last())
        log.add(made.line())
    said = made.statement
    signed = ", ".join(sorted(node for node, one in made.signatures.items() if one is not None))
    ends = labels({leader: tick for leader, (tick, _) in said.heads.items()})
    click.echo(f"anchor {said.number}: {ends}; signed by {signed or 'nobody'}")
    for node, why in sorted(missing.items()):
        click.echo(f"{node} has not signed: {why}", err=True)
    if not signed:
        click.echo(
            "the nodes have no certificates, so whoever can write to the file can make another one: keep it apart, or "
            "see 'bedrockish tls'",
            err=True,
        )


class _Log:
    """An anchor file, to which one process at a time adds lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "_Log":
        try:
            self._file = open(self._path, "a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(f"another program adds to {self._path}; try again when it has ended") from None
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from error
        self._drop_torn()
        return self

    def _drop_torn(self) -> None:
        """Remove a last line without an end: its writer was killed before it reported the anchor.

        A line that does not begin like an anchor stays: the user has named another file by mistake.
        """
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data) and data[whole : whole + len(BEGINNING)] == BEGINNING[: len(data) - whole]:
            self._file.truncate(whole)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._path.stat().st_size == 0:  # no anchor was added
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
    """Return a new anchor, and the reasons of the voters that have not signed it."""
    async with open_client(url) as client:
        nodes = await client.nodes(timeout=TIMEOUT_S)
        facts = await client.upkeep({"do": "anchor"}, timeout=TIMEOUT_S)
    said = _statement(facts, last)
    if last is not None and said.cluster != last.statement.cluster:
        raise UsageError("the file has anchors of another cluster; keep a file for each")
    signatures: dict[str, Signature | None] = {}
    missing: dict[str, str] = {}

    async def ask(node: str) -> None:
        try:
            bound_s = TIMEOUT_S if nodes[node]["up"] else DOWN_S
            signatures[node] = await _signature(url_of(url, nodes[node]), said, bound_s)
        except BedrockishError as error:
            missing[node] = error.message
        except KeyError:
            missing[node] = "it is no member any more"

    async with trio.open_nursery() as nursery:
        for node in said.voters:
            nursery.start_soon(ask, node)
    if len(signatures) < said.quorum:
        why = "; ".join(f"{node}: {why}" for node, why in sorted(missing.items()))
        raise UnavailableError(
            f"only {len(signatures)} of {len(said.voters)} voters confirm the ends of the journals ({why}); nothing "
            "was written"
        )
    return Anchor(said.text(), said, signatures), missing


def _statement(facts: Mapping[str, Any], last: Anchor | None) -> Statement:
    """Return the statement to be signed, from one node's facts."""
    try:
        said = Statement(
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
        raise ProtocolMismatchError(f"the node says nothing that could be anchored: {error}") from error


async def _signature(url: str, said: Statement, bound_s: float) -> Signature | None:
    """Return a node's signature; None if the node confirms the statement and has no certificate."""
    until = trio.current_time() + bound_s
    told = None
    async with open_client(url) as client:
        while told is None:
            try:
                told = await client.upkeep({"do": "anchor", "statement": said.text()}, timeout=bound_s)
            except UnavailableError:
                if trio.current_time() > until:
                    raise
                await trio.sleep(AGAIN_S)
    try:
        return None if told["signature"] is None else read_signature(told["signature"])
    except (KeyError, ValueError) as error:
        raise ProtocolMismatchError(f"this is no signature: {error}") from error
