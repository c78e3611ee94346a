"""The joining of a new node: it is admitted as a learner, gets the data, and may be promoted.

The data is a copy of a member's file, which is quick, or the whole journal, fetched from several nodes. Either way the
file has the founding of the cluster and every commit since, and the node answers no request before it has caught up
with the moment of its admission.
"""

import errno
import hashlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from bedrockish.api.requests import ADD, PROMOTE, MemberChange
from bedrockish.api.url import Address, Target, hide_password, parse_url
from bedrockish.api.wire import JOIN, SNAPSHOT, Ask, AskChunk, Failed, Told, decode_reply, encode_call
from bedrockish.client.credentials import ClientCredentials, credentials_of
from bedrockish.client.link_end import explain_end
from bedrockish.client.request_builder import new_command
from bedrockish.client.trio_client import open_client
from bedrockish.common.durable_files import sync
from bedrockish.config.config import Config
from bedrockish.core.protocol.health import Alarm, Mode
from bedrockish.core.protocol.records import Joining, encode_joining
from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.storage import refill
from bedrockish.engine.storage.database_file import founded_alone, whole_path
from bedrockish.engine.storage.rename_copy import claimed, make_plain, put_in_new_place, relabel
from bedrockish.engine.storage.scratch_files import remove
from bedrockish.errors import (
    AuthenticationError,
    BedrockishError,
    ConfigError,
    MembershipError,
    OutcomeUnknownError,
    ProtocolMismatchError,
    UnavailableError,
    UsageError,
)
from bedrockish.node.cluster.authentication import Credentials
from bedrockish.node.cluster.unfinished_join import end_join, mark_join
from bedrockish_journal.model.errors import EntryMalformedError, JournalError
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.vector import check
from bedrockish_net.errors import NetError
from bedrockish_net.events import Hello
from bedrockish_net.limits import LinkLimits

logger = logging.getLogger(__name__)
Call = Callable[[Ask | AskChunk], Awaitable[Any]]

FACTS_S = 20.0  # how long a member may take to apply our admission
AGAIN_S = 0.5
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WAIT_FOR = ("behind", "silent", "quorum", "mode")  # a promotion refused for one of these reasons is tried again


@asynccontextmanager
async def calls(address: Address, hello: Hello, entry: ClientCredentials) -> AsyncIterator[Call]:
    """Open a link to a node, for calls that are made one after the other.

    Raises:
        AuthenticationError: the node does not admit us.
        UnavailableError: the link cannot be opened, or has ended.
        BedrockishError: the node answers a call with this error.
    """
    try:
        link = await entry.dial(address, hello, LinkLimits().hello_seconds, LinkLimits())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)

            async def call(what: Ask | AskChunk) -> Any:
                await link.send(encode_call(what))
                reply = decode_reply(await link.receive())
                if isinstance(reply, Failed):
                    raise reply.error
                if not isinstance(reply, Told):
                    raise ProtocolMismatchError(f"{address} sent an answer to another question")
                return reply.value

            yield call
            nursery.cancel_scope.cancel()
    except* (NetError, BedrockishError) as errors:  # one clause for both: two clauses that raise would raise a group
        found = _cause(errors)
        if isinstance(found, NetError):
            why = explain_end(found)
            found = why if isinstance(why, AuthenticationError) else UnavailableError(f"{address}: {why}")
        raise found from errors


def _cause(group: BaseExceptionGroup[NetError | BedrockishError]) -> NetError | BedrockishError:
    """Return one error of a group for the caller: a BedrockishError if there is one, else an error of the link."""
    said, _ = group.split(BedrockishError)
    found: BaseException = said if said is not None else group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, NetError | BedrockishError)
    return found


async def join(config: Config, url: str, *, replay: bool) -> None:
    """Get this node admitted as a learner, and make its file; then the node can be started.

    Args:
        config: the new node's configuration; the node's address is its own in ``peers``, or ``listen``.
        replay: fetch the journal when the node runs, instead of a copy of a file now.

    Raises:
        ConfigError: the node's file exists, another process makes it, or the node has no address for others.
        MembershipError: the cluster does not admit the node.
        BedrockishError: no node could be asked, or none could give a copy.
    """
    path = _checked_path(config)
    with claimed(path):
        await _join(config, url, path, replay=replay)


async def _join(config: Config, url: str, path: Path, *, replay: bool) -> None:
    target, address = parse_url(url), config.peers[config.node]
    if address.host in ("0.0.0.0", "::") or not address.port:
        raise ConfigError(f"the others cannot reach {config.node} at {address}; add its address to [peers]")
    store, entry = secrets.token_hex(8), Credentials(config).entry(target)
    if replay:
        await _check_whole(config, target, entry)
    async with open_client(url, entry=entry) as client:
        was_marked = mark_join(path)
        try:
            await _insist(client.change_members, MemberChange(ADD, config.node, str(address), store=store))
        except BedrockishError as error:
            if not (was_marked or isinstance(error, OutcomeUnknownError)):
                end_join(path)
            raise
    logger.info("%s is a learner of the cluster now", config.node)
    try:
        await _get_data(config, url, path, store, replay=replay)
        end_join(path)
    except BaseException:
        logger.warning(
            "%s is a learner without data: run 'bedrockish join' again, or 'bedrockish member remove URL %s'",
            config.node,
            config.node,
        )
        raise


async def _get_data(config: Config, url: str, path: Path, store: str, *, replay: bool) -> None:
    """Make the file of a node that the cluster has admitted, with the data of one of the nodes of the URL."""
    target = parse_url(url)
    entry = Credentials(config).entry(target)
    last: BedrockishError = UnavailableError(f"no node can be asked at {hide_password(url)}")
    for donor in _donors(config, target):
        try:
            async with calls(donor, Hello(f"join-{config.node}", config.cluster, "client"), entry) as call:
                told, bootstrap, why_not = await _facts(call, config.node, store)
                if replay and why_not:
                    raise UsageError(f"{why_not}; join without --replay, by a copy")
                if replay:
                    _make_empty(path, config, bootstrap, store, encode_joining(told))
                else:
                    await _copy(call, path, config.node, store, encode_joining(told))
            return
        except UnavailableError as error:
            logger.warning("%s gives no copy: %s", donor, error)
            last = error
    raise last


def _checked_path(config: Config) -> Path:
    path = whole_path(config.database)
    founder = founded_alone(path) if path.exists() else ""
    if founder:
        raise ConfigError(
            f"{path} is the file of {founder}, which has served as a cluster of its own, and its data cannot be joined "
            "with those of another cluster: if they are not needed, move the file and its -wal and -shm away and join "
            "again, else write them out first ('bedrockish export') and import them after the join"
        )
    if path.exists():
        raise ConfigError(f"{path} is there already; a node that has joined is started with 'bedrockish serve'")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} is in a directory that does not exist; create it first")
    return path


def _donors(config: Config, target: Target) -> list[Address]:
    """Return the addresses of the nodes that may have the data: those of the URL, without this node."""
    return [address for address in target.addresses if address != config.peers[config.node]]


async def _insist(change_members: Callable[..., Awaitable[Any]], change: MemberChange) -> None:
    """Make a change under one command id, and retry while its outcome is unknown."""
    command, unknown = new_command(), None
    for _ in range(5):
        try:
            await change_members(change, command=command)
            return
        except OutcomeUnknownError as error:
            logger.info("the change may have happened: %s", error.message)
            unknown = error
        except UnavailableError as error:  # this call had no effect; an earlier one may have had
            if unknown is None:
                raise
            raise unknown from error
    assert unknown is not None
    raise unknown


async def _facts(call: Callable[[Ask], Awaitable[Any]], node: str, store: str) -> tuple[Joining, bytes, str]:
    """Ask a node until it has applied our admission; return its membership and vector, the founding membership, and
    why its journal cannot be replayed, empty if it can.
    """
    with trio.move_on_after(FACTS_S):
        while True:
            packed = await call(Ask(1, JOIN))
            try:
                membership, bootstrap = read_membership(packed["membership"]), packed["bootstrap"]
                told = Joining(membership, check(packed["vector"]))
                read_membership(bootstrap)
            except (EntryMalformedError, TypeError, KeyError) as error:
                raise ProtocolMismatchError(f"the node's answer is not the facts of a join: {error}") from error
            member = membership.members.get(node)
            if member is not None and member.store == store:
                return told, bootstrap, _not_whole(packed)
            await trio.sleep(AGAIN_S)
    raise UnavailableError(
        f"the asked node did not report within {FACTS_S:g} s that {node} is a member; run the command again"
    )


async def _check_whole(config: Config, target: Target, entry: ClientCredentials) -> None:
    """Raise an error if the cluster's journal cannot be replayed; called before the cluster admits this node."""
    for donor in _donors(config, target):
        with suppress(UnavailableError):
            async with calls(donor, Hello(f"join-{config.node}", config.cluster, "client"), entry) as call:
                why_not = _not_whole(await call(Ask(1, JOIN)))
            if why_not:
                raise UsageError(f"{why_not}; join without --replay, by a copy")
            return


def _not_whole(packed: Mapping[str, Any]) -> str:
    if packed.get("removed"):
        return "the beginning of the cluster's journal was removed to make room, so it cannot be replayed"
    if packed.get("replayable", True):
        return ""
    return "the cluster began with a database that had tables already, so its journal does not have all its rows"


def _make_empty(path: Path, config: Config, bootstrap: bytes, store: str, joining: bytes) -> None:
    """Make an empty file that knows the cluster; the running node fetches the journal.

    The file gets its name when it is whole: on the unfinished file of a killed run, ``serve`` would found a cluster.
    """
    unfinished, founding = _unfinished(path), Founding(config.node, read_membership(bootstrap), store, joining)
    try:
        remove(unfinished)
        Engine.open(unfinished, founding=founding).close()
        sync(unfinished)
        unfinished.with_name(unfinished.name + ".lock").unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{unfinished} cannot be written: {error.strerror}; check the disk") from error
    put_in_new_place(unfinished, path)


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".joining")


async def _copy(call: Call, path: Path, node: str, store: str, joining: bytes) -> None:
    """Fetch a copy of another node's file, and turn it into this node's file.

    The copy includes rows that are damaged at the source. Two voters with the same wrong row would approve each other's
    results from it, and they are a majority of three. So the node only reads until it has compared its tables with its
    journal (``Healer.prove``). The comparison takes much longer than the copy, and the node serves reads during it.
    """
    unfinished = _unfinished(path)
    await download(call, unfinished)
    try:
        why_not = refill.why_unprovable(unfinished)
    except JournalError as error:
        raise UnavailableError(f"the copy cannot be taken: {error}; another node is asked") from error
    if why_not:
        logger.warning("the copy is taken unproven: %s; run 'bedrockish verify URL' when this node serves", why_not)
    reason = f"node {node} began with a copy, and approves nothing until its tables are compared with its journal"
    relabel(unfinished, node, store, joining, None if why_not else Alarm(Mode.READ_ONLY, reason, {}))
    put_in_new_place(unfinished, path)


async def download(call: Call, unfinished: Path, check_room: Callable[[int], None] = lambda _: None) -> int:
    """Fetch a copy of the other node's file, make it durable and check it; return its size in bytes.

    If that fails, the unfinished copy is removed. ``check_room`` raises an error if the disk lacks room for the copy.
    """
    promised = await call(Ask(1, SNAPSHOT))
    if not isinstance(promised, Mapping) or type(promised.get("size")) is not int:
        raise ProtocolMismatchError("the node's answer is not the size of a copy")
    size = promised["size"]
    check_room(size)
    logger.info("fetching a copy of %d bytes", size)
    digest, offset, is_whole = hashlib.sha256(), 0, False
    try:
        remove(unfinished)  # with the WAL that a killed run may have left, which SQLite would apply to the copy
        async with await trio.open_file(unfinished, "wb") as file:
            while offset < size:
                piece = await call(AskChunk(1, offset))
                if not isinstance(piece, bytes) or not 0 < len(piece) <= size - offset:
                    raise ProtocolMismatchError(f"the node sent no piece at {offset} of a copy of {size} bytes")
                await file.write(piece)
                digest.update(piece)
                offset += len(piece)
            await file.flush()
            await trio.to_thread.run_sync(os.fsync, file.fileno())
        if digest.digest() != promised.get("sha256"):
            raise UnavailableError("the copy arrived damaged; try again")
        is_whole = True
    except OSError as error:
        what_to_do = "make room and try again" if error.errno in NO_ROOM else "name a folder that may be written"
        raise ConfigError(f"{unfinished} cannot be written: {error.strerror}; {what_to_do}") from error
    finally:
        if not is_whole:
            with suppress(OSError):
                remove(unfinished)
    return int(size)


async def back_up(url: str, path: Path, others: Iterable[Address] = ()) -> int:
    """Write a consistent copy of some node's file to a new file, and return its size in bytes.

    The nodes of the URL are asked first, and then ``others``.

    Raises:
        ConfigError: the file is there already, another process writes it, or it cannot be written.
        BedrockishError: no node gave a copy.
    """
    with claimed(path):
        return await _back_up(url, path, others)


async def _back_up(url: str, path: Path, others: Iterable[Address]) -> int:
    target = parse_url(url)
    entry = credentials_of(target)
    unfinished = path.with_name(path.name + ".part")
    last = UnavailableError(f"no node can be asked at {hide_password(url)}")
    for address in dict.fromkeys((*target.addresses, *others)):
        try:
            async with calls(address, Hello(f"backup-{os.getpid()}", target.cluster, "client"), entry) as call:
                size = await download(call, unfinished)
        except UnavailableError as error:
            last = error
            continue
        try:
            make_plain(unfinished)
            put_in_new_place(unfinished, path)
        except ConfigError:
            with suppress(OSError):
                remove(unfinished)
            raise
        return size
    raise last


async def promote_when_ready(url: str, config: Config) -> None:
    """Get this learner promoted as soon as it has caught up; retry while the cluster does not answer.

    Raises:
        BedrockishError: the cluster refuses, for a reason that does not pass by itself.
    """
    entry = Credentials(config).entry(parse_url(url))
    while True:
        try:
            async with open_client(url, entry=entry) as client:
                await _insist(client.change_members, MemberChange(PROMOTE, config.node))
            logger.info("%s is a voter now", config.node)
            return
        except MembershipError as error:
            reason = error.details.get("reason")
            if reason == "duplicate":  # promoted already: by another caller, or by us when the answer was lost
                logger.info("%s", error.message)
                return
            if reason not in WAIT_FOR:
                raise
            logger.info("not promoted yet: %s", error.message)
        except BedrockishError as error:
            if not error.retry and not isinstance(error, OutcomeUnknownError):
                raise
            logger.info("not promoted yet: %s", error.message)
        await trio.sleep(AGAIN_S)
