"""Runs a node: opens its file, connects it to peers and clients, restarts it after faults, and closes it gracefully."""

import ctypes
import gc
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import trio

from bedrockish.common.machine import why_refused
from bedrockish.config.config import Config, warnings
from bedrockish.engine.engine import Engine, Founding, Limits
from bedrockish.engine.sqlite.errors import NO_MEMORY, NO_ROOM, disk_failure, essential_reads
from bedrockish.engine.sqlite.limits import Memory
from bedrockish.engine.storage import refill
from bedrockish.engine.storage.database_file import (
    check_alone,
    check_log,
    everyone_may_read,
    is_node_file,
    others_may_read,
    whole_path,
)
from bedrockish.engine.storage.rebuild_indexes import rebuild_in_place
from bedrockish.errors import BedrockishError, ConfigError, DamagedError, NoRoomError
from bedrockish.node.admin.anchoring import Anchoring
from bedrockish.node.admin.watching import WriteCheck, files_max
from bedrockish.node.client_session import serve_client
from bedrockish.node.cluster.authentication import Credentials, Gate
from bedrockish.node.cluster.donor import Donor
from bedrockish.node.cluster.identity import find_cluster, info_for_clients, only_asks
from bedrockish.node.cluster.membership import addresses
from bedrockish.node.cluster.unfinished_join import check_joined, end_join
from bedrockish.node.departure import Departure, drain, send_last_message
from bedrockish.node.plugins import Plugins
from bedrockish.node.published import close_socket, open_socket
from bedrockish.node.repair.healer import Healer, RestartError, note_damage
from bedrockish.node.repair.index_scrubber import IndexScrubber
from bedrockish.node.repair.scrubber import Scrubber
from bedrockish.node.runtime import Runtime
from bedrockish.node.waiting import answer_while_waiting
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_net import mesh as net
from bedrockish_net.connection_limits import ConnectionLimits
from bedrockish_net.errors import ListenError, NetError
from bedrockish_net.events import Hello
from bedrockish_net.inflow import Inflow
from bedrockish_net.stream import Link

logger = logging.getLogger(__name__)


MMAP_THRESHOLD, ARENA_MAX = -3, -8  # parameters of mallopt in the GNU C library
LARGE_BLOCK_BYTES, ARENAS = 512 << 10, 2
INFLOW_PARTS = 4  # incomplete messages of clients may take the memory divided by this number
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 60.0  # pause before a node whose program failed is restarted


async def serve(config: Config, departure: Departure | None = None) -> None:
    """Run a node until cancelled, or until its departure ends it.

    A fault of the program does not end the process after the node was up: the node drops its state in memory and
    restarts from its file, as after a crash. The file has all votes and commits that the node has promised.

    Raises:
        ConfigError: the file, the address or the configuration cannot be used.
        DamagedError: the file or the machine failed, and the node had to stop.
    """
    if config.http is not None:
        load_http()  # a missing package ends the program before there is a file, and before other nodes hear of it
    check_log(whole_path(config.database))
    credentials, plugins = Credentials(config), Plugins(config.plugins)
    departure = departure or Departure()
    departure.reload = partial(reload, config, credentials)
    for warning in warnings(config):
        logger.warning("%s", warning)
    pause_s, restarts, shortages = PAUSE_S_MIN, 0, 0
    damage: DamagedError | None = None
    was_up = is_rebuilt = False
    while True:
        up = trio.Event()
        began = trio.current_time()
        try:
            await _run(config, credentials, plugins, restarts, up, damage, departure)
            return
        except Exception as error:
            was_up = was_up or up.is_set()
            again = why_restart(error)
            if again is not None:
                # Kept until a restart succeeds: the node has to report the damage, even after a wait for a full disk.
                damage = again if isinstance(again, DamagedError) else None
                logger.warning("restarting the node: %s", again)
                if isinstance(again, RestartError) and again.copy is not None:
                    await _install(config, again.copy)
                if not up.is_set():  # a fault before the node served may recur at each restart
                    await trio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
                continue
            if _lacks_room(error):
                shortages = shortages if trio.current_time() - began < PAUSE_S_MAX else 0
                leaf = _leaf(error)
                limit = str(leaf) if str(leaf) == NO_MEMORY else why_refused(leaf)
                room = WriteCheck(config.database, shortages, limit)
                shortages += 1
                logger.error("the node waits, and answers with the reason: %s (%s)", room.why, _leaf(error))
                await answer_while_waiting(config, credentials, room, load_http("waiting") if config.http else None)
                logger.warning("%s can be written again", config.database)
                continue
            if not is_rebuilt and _lacks_page(error) and await _give_new_indexes(config, plugins):
                is_rebuilt = True
                if len(config.peers) > 1:  # this damage makes the node compare its tables with other nodes
                    damage = DamagedError("an index could not be read, and was rebuilt", table="", page=str(error))
                continue
            why_not = _why_unusable(error)
            if not was_up or not (_is_fault(error) or why_not):
                raise
            if trio.current_time() - began > PAUSE_S_MAX:
                pause_s = PAUSE_S_MIN
            restarts += 1
            if why_not:
                logger.error("the node cannot restart yet: %s", why_not)
                await trio.sleep(PAUSE_S_MAX)
                continue
            _tell_of_fault(error, pause_s)
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _tell_of_fault(error: Exception, pause_s: float) -> None:
    if limit := why_refused(_leaf(error)):
        logger.error("%s; the node restarts from its file in %g s", limit, pause_s)
        return
    if disk := disk_failure(error):
        logger.error("the disk failed (%s): check it; the node restarts from its file in %g s", disk, pause_s)
        return
    logger.critical(
        "the node's program failed and discards its state in memory; it restarts from its file in %g s: "
        "please report this",
        pause_s,
        exc_info=error,
    )


def _lacks_room(error: Exception) -> bool:
    """Return whether a node ended because its file cannot be written: full disk, quota, read-only file system."""
    if isinstance(error, ExceptionGroup):
        return any(map(_lacks_room, error.exceptions))
    return isinstance(error, NoRoomError) or (isinstance(error, OSError) and error.errno in NO_ROOM)


def _lacks_page(error: Exception) -> bool:
    """Return whether a node could not start because a page of its file cannot be read."""
    return isinstance(error, DamagedError) and "page" in error.details and "table" not in error.details


async def _give_new_indexes(config: Config, plugins: Plugins) -> bool:
    """Rebuild the indexes of the node's file from its tables; return whether that was possible."""
    go_on = trio.from_thread.check_cancelled
    logger.warning("%s cannot be read; rebuilding its indexes, in case only they are damaged", config.database)
    try:
        await trio.to_thread.run_sync(rebuild_in_place, config.database, plugins.prepare, go_on)
    except DamagedError as error:
        logger.error("the indexes cannot be rebuilt: %s", error.message)
        return False
    except BedrockishError as error:
        logger.error("the indexes may be rebuilt when this is corrected and the node is started: %s", error.message)
        return False
    logger.warning("the indexes were rebuilt")
    return True


def _why_unusable(error: Exception) -> str:
    """Return why the configuration cannot be used for now, such as an address in use; empty for other errors."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return str(error) if isinstance(error, ConfigError | ListenError) else ""


def _is_fault(error: Exception) -> bool:
    """Return whether an error is a bug or a fault of the machine, and not one of bedrockish's own errors."""
    if isinstance(error, ExceptionGroup):
        return error.subgroup((BedrockishError, NetError)) is None
    return not isinstance(error, BedrockishError | NetError)


async def _run(
    config: Config,
    credentials: Credentials,
    plugins: Plugins,
    restarts: int,
    up: trio.Event,
    damage: DamagedError | None,
    departure: Departure,
) -> None:
    """Run a node from its file until cancelled; set ``up`` when it serves. ``damage``: why its last run ended."""
    founding = await _founding(config, credentials)
    limits = Limits(
        result_bytes=config.limits.result_bytes_max,
        changes_bytes=config.limits.changes_bytes_max,
        statement_s=config.limits.statement_ms_max / 1000,
        budget_s=config.limits.loop_ms_max / 1000,
        memory=Memory(config.limits.memory_max, now=time.monotonic),
    )
    with essential_reads(config.database):
        engine = Engine.open(config.database, founding=founding, limits=limits, prepare=plugins.prepare)
    warn_of_readers(config)
    try:
        if damage is not None:
            note_damage(engine, damage)
        with essential_reads(config.database):
            runtime = Runtime(engine, config, plugins, credentials)
        runtime.counts["restarts"] = restarts
        calm_collector()
        give_back_memory()
        departure.drain = partial(drain, runtime, departure)
        departure.reload = lambda: reload(config, credentials, runtime.output.mesh)
        await _serve(runtime, config, credentials, plugins, up, departure)
    except BaseExceptionGroup as group:
        cancelled, rest = group.split(trio.Cancelled)
        if cancelled is not None and rest is not None and isinstance(why_restart(rest), RestartError):
            raise cancelled from None  # the node was about to restart, and is cancelled: not an error
        raise
    finally:
        close_socket(config.database)
        departure.drain, departure.reload = None, partial(reload, config, credentials)
        engine.close()


def warn_of_readers(config: Config) -> None:
    """Log a warning for each file of the node whose content another user of the machine can read."""
    if others_may_read(Path(config.database)):
        logger.warning("%s can be read by other users of the machine: chmod 600 it, its -wal and -shm", config.database)
    key = Path(config.security.files(config.node).key)
    if config.security.encrypts and everyone_may_read(key):
        logger.warning("%s, the node's private key, can be read by every user of the machine: chmod 600 it", key)


def why_restart(error: BaseException) -> RestartError | DamagedError | None:
    """Return why a node restarts in the same process; None if it must end.

    Damaged tables do not end a node: it restarts as after a crash, from its durable state, and reports the damage. If
    the process ended, its supervisor would start it again, and it would end at the same entry each time.
    """
    if isinstance(error, BaseExceptionGroup):
        found = [why_restart(one) for one in error.exceptions if not isinstance(one, trio.Cancelled)]
        known = [one for one in found if one is not None]
        return known[0] if known and len(known) == len(found) else None
    if isinstance(error, RestartError) or (isinstance(error, DamagedError) and "table" in error.details):
        return error
    return None


async def _install(config: Config, copy: Path) -> None:
    """Replace the node's file by a finished copy; on failure, log the error and keep the file."""
    try:
        await trio.to_thread.run_sync(refill.install, config.database, copy)
        logger.warning("the node's tables were filled again")
    except ConfigError as error:
        logger.error("%s", error.message)


async def _founding(config: Config, credentials: Credentials) -> Founding:
    """Return the founding state for a new file; in an existing file, only the node's name is checked against it."""
    cluster_id, level, path = "", LEVEL, Path(config.database)
    if is_node_file(path):
        end_join(path)
    else:
        check_joined(path)
        check_alone(path, config.node, config.peers)
        cluster_id, level = await find_cluster(config, credentials.entry())
    members = {node: Member(node, str(address)) for node, address in config.peers.items()}
    return Founding(config.node, Membership(0, members, cluster_id, level), secrets.token_hex(8))


def give_back_memory() -> None:
    """Configure the C library to return large blocks to the system when they are freed.

    By default, after the first large block is freed, the library keeps later freed blocks of up to 32 MiB, in a heap
    for each thread. A node would then hold several times the memory that it needs.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    mallopt(MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    mallopt(ARENA_MAX, ARENAS)


def calm_collector() -> None:
    """Exempt the present objects from garbage collection, because scanning them would take a tenth of a node's time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _handler(runtime: Runtime, config: Config, gate: Gate, departure: Departure) -> net.ClientHandler:
    donor = Donor(runtime.core, runtime.engine, config.database, runtime.durable)

    async def on_client(link: Link) -> None:
        if only_asks(link.remote):
            return
        if departure.has_answered:
            send_last_message(link)
            return
        why_out = partial(gate.why_out, link.stream) if gate.comes_with_token(link.stream) else None
        await serve_client(link, runtime, donor, user=gate.caller(link.stream), disconnect_reason=why_out)

    return on_client


async def _serve(
    runtime: Runtime, config: Config, credentials: Credentials, plugins: Plugins, up: trio.Event, departure: Departure
) -> None:
    state = runtime.core.state
    gate = Gate(config, credentials, runtime.engine.access, partial(_moment, runtime))
    runtime.upkeep.orders["token"] = gate.order_token
    hello = Hello(config.node, config.cluster, info=runtime.output.info)  # the info is read again for each peer
    local_socket = open_socket(config.database)
    mesh = net.Mesh(
        hello,
        addresses(state.roster.links()),
        on_event=runtime.peers.on_net,
        draw=random.random,
        on_client=_handler(runtime, config, gate, departure),
        judge=runtime.peers.judge,
        on_stranger=runtime.peers.on_stranger,
        recognise=runtime.peers.recognise,
        host=config.listen.host,
        port=config.listen.port,
        on_log=logger.warning,
        on_fault=runtime.faults.caught,
        connection_limits=ConnectionLimits(
            clients_max=config.limits.connections_max,
            clients_per_address_max=config.limits.connections_per_address_max,
            files_max=files_max(),
        ),
        inflow=Inflow(config.limits.memory_max // INFLOW_PARTS, trio.current_time),
        dial_context=credentials.dial_context,
        listen_context=credentials.listen_context,
        trust=credentials.trust,
        admit=gate.admit,
        tell_client=partial(info_for_clients, runtime.output.info),
        local_socket=local_socket,
    )
    runtime.output.on_members = partial(_take_passwords, gate, credentials, mesh)
    runtime.output.on_members()
    with local_socket or nullcontext():  # the socket is closed even if the node ends before it listens
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.transactions.programs.reach_voters, credentials.entry, config.cluster)
            await trio.to_thread.run_sync(runtime.engine.sync)  # writes of a killed process may not be durable yet
            bound = await nursery.start(mesh.run)
            runtime.publisher.create_page()  # before the first answer: a program that gets one can open the file
            runtime.output.mesh = mesh
            if mesh.read_loop is not None:
                runtime.read_by(mesh.read_loop)
            _tell_where(config, state.roster.membership.nodes, bound)
            if local_socket is not None:
                nursery.start_soon(runtime.publisher.keep_socket, mesh.listen_here)
            if config.http is not None:
                await nursery.start(load_http(), runtime, config, gate, credentials)
            up.set()
            for what, task in _repairs(runtime, config, credentials, plugins).items():
                nursery.start_soon(runtime.faults.keep_running, what, task)
            try:
                await runtime.run()
            finally:
                runtime.leave()


def _tell_where(config: Config, members: Iterable[str], bound: Iterable[tuple[str, int]]) -> None:
    where = ", ".join(f"{host}:{port}" for host, port in bound)
    names = " ".join(members)
    logger.info("node %s of %s (%s) serves %s on %s", config.node, config.cluster, names, config.database, where)


def _repairs(
    runtime: Runtime, config: Config, credentials: Credentials, plugins: Plugins
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the tasks that find and repair damaged tables, by name, and register their orders for operators."""
    core, engine, entry = runtime.core, runtime.engine, credentials.entry
    scrubber = Scrubber(core, engine, config, entry, plugins.prepare, runtime.stop)
    indexes = IndexScrubber(core, engine, config, plugins.prepare, runtime.stop)
    scrubber.on_hurry = indexes.start_now
    healer = Healer(core, engine, config, entry, scrubber, plugins.prepare, runtime.durable, runtime.stop)
    runtime.upkeep.orders |= {
        "digest": scrubber.digest,
        "scrub": scrubber.start_now,
        "entry": healer.entry,
        "repair": healer.repair,
        "resolve": healer.resolve,
    }
    runtime.upkeep.orders["anchor"] = Anchoring(core, config, lambda: runtime.clock().wall_ms).answer
    runtime.upkeep.reports += [scrubber.status, indexes.status]
    return {
        "comparing tables": scrubber.watch,
        "checking indexes": indexes.watch,
        "repairing tables": healer.watch,
        "comparing a copy with its journal": healer.prove,
    }


def _moment(runtime: Runtime) -> tuple[str, int]:
    """Return the id of the cluster, and the time in milliseconds since 1970 for the expiry of tokens.

    The time is the later of the cluster's clock and the machine's clock: while the cluster's clock is off, it falls
    behind the time of day.
    """
    state = runtime.core.state
    return state.roster.membership.cluster_id, max(milliseconds(state.clock.value), runtime.clock().wall_ms)


def _take_passwords(gate: Gate, credentials: Credentials, mesh: net.Mesh) -> None:
    """Allow clients to log in with a password instead of a certificate if the cluster has users."""
    if gate.users and not credentials.takes_passwords:
        credentials.takes_passwords = True
        reread(credentials, mesh)


def reload(config: Config, credentials: Credentials, mesh: net.Mesh | None = None) -> None:
    """Read certificates, key and revocations again, as SIGHUP asks; a file that cannot be used changes nothing."""
    if not config.security.encrypts:
        logger.info("SIGHUP: this node has no certificates to read again")
    elif reread(credentials, mesh):
        logger.info("SIGHUP: certificates and revocations were read again")


def reread(credentials: Credentials, mesh: net.Mesh | None = None) -> bool:
    """Read certificates, key and revocations again; return whether they could be used."""
    try:
        credentials.reload()
    except ConfigError as error:
        logger.error("SIGHUP: %s; the certificates stay as they were", error)
        return False
    if mesh is not None and credentials.dial_context is not None and credentials.listen_context is not None:
        mesh.use_certificates(credentials.dial_context, credentials.listen_context)
    return True


def _leaf(error: BaseException) -> BaseException:
    """Return the error inside nested groups of a single error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def load_http(state: str = "serving") -> Callable[..., Awaitable[None]]:
    """Return the function that serves HTTP for a node in the state ``serving`` or ``waiting``; import it only now.

    Raises:
        ConfigError: a package for HTTP is not installed.
    """
    try:
        from bedrockish.http.serving import serve_http
        from bedrockish.http.waiting import serve_waiting
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"http: the package {error.name} is missing; pip install 'bedrockish[http]', or leave out the key http"
        ) from error
    return serve_http if state == "serving" else serve_waiting
