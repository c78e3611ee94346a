"""Runs a node: opens its file, connects it with its peers and its clients, and closes it in order."""

import gc
import logging
import random
import secrets
from collections.abc import Awaitable, Callable

import trio

from bedrockish.config import Config
from bedrockish.core.records import Member, Membership
from bedrockish.donating import Donor
from bedrockish.engine.engine import Engine, Founding, Limits
from bedrockish.errors import ConfigError
from bedrockish.gate import Credentials, Gate
from bedrockish.members import addresses
from bedrockish.plugins import Plugins
from bedrockish.runtime import Runtime
from bedrockish.security import warnings
from bedrockish.server import serve_client
from net import mesh as net
from net.events import Hello
from net.stream import Link

logger = logging.getLogger(__name__)


async def serve(config: Config) -> None:
    """Run a node until cancelled.

    Raises:
        ConfigError: the file, the address or the configuration cannot be used.
        DamagedError: the node had to stop.
    """
    credentials = Credentials(config)
    for warning in warnings(config):
        logger.warning("%s", warning)
    members = {node: Member(node, str(address)) for node, address in config.peers.items()}
    founding = Founding(config.node, Membership(0, members), secrets.token_hex(8))
    limits = Limits(
        result_bytes=config.limits.result_bytes_max,
        changes_bytes=config.limits.changes_bytes_max,
        statement_s=config.limits.statement_ms_max / 1000,
        budget_s=config.limits.loop_ms_max / 1000,
    )
    plugins = Plugins(config.plugins)
    engine = Engine.open(
        config.database, founding=founding, full_sync=config.full_sync, limits=limits, prepare=plugins.prepare
    )
    try:
        runtime = Runtime(engine, config, plugins)
        calm_collector()
        await _serve(runtime, config, credentials)
    finally:
        engine.close()


def calm_collector() -> None:
    """What is here now stays; looking through it for garbage again and again would cost a node a tenth."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _serve(runtime: Runtime, config: Config, credentials: Credentials) -> None:
    gate = Gate(config, credentials)
    state = runtime.core.state
    hello = Hello(config.node, config.cluster, info=runtime.info)  # which is read again for each link
    donor = Donor(runtime.core, runtime.engine, config.database, runtime.durable)

    async def on_client(link: Link) -> None:
        await serve_client(
            link,
            runtime,
            in_flight_max=config.limits.in_flight_max,
            donor=donor,
            begin=runtime.begin,
            transactions=runtime.transactions,
            upkeep=runtime.upkeep,
        )

    mesh = net.Mesh(
        hello,
        addresses(state.links()),
        on_event=runtime.on_net,
        draw=random.random,
        on_client=on_client,
        judge=runtime.judge,
        host=config.listen.host,
        port=config.listen.port,
        on_log=logger.warning,
        dial_context=credentials.dial_context,
        listen_context=credentials.listen_context,
        secret=credentials.secret,
        admit=gate.admit,
    )
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(mesh.run)
        runtime.mesh = mesh
        where = ", ".join(f"{host}:{port}" for host, port in bound)
        members = " ".join(state.membership.nodes)
        logger.info("node %s of %s (%s) serves %s on %s", config.node, config.cluster, members, config.database, where)
        if config.http is not None:
            await nursery.start(load_http(), runtime, config, gate, credentials.entry())
        try:
            await runtime.run()
        finally:
            runtime.leave()


def load_http() -> Callable[..., Awaitable[None]]:
    """Return what serves HTTP: a part that a node does without unless it is configured.

    Raises:
        ConfigError: what it needs is not installed.
    """
    try:
        from bedrockish.http.serving import serve_http
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"http: the package {error.name} is missing; pip install 'bedrockish[http]', or leave out the key http"
        ) from error
    return serve_http
