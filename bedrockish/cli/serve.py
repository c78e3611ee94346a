"""``bedrockish serve``: read the configuration, run the node, leave on SIGTERM and SIGINT."""

import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from bedrockish.common import log_format as logs
from bedrockish.common.machine import check_linux, too_low
from bedrockish.config.config import LEVELS, Config, build
from bedrockish.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from bedrockish.node.departure import Departure

logger = logging.getLogger(__name__)

FILES = 65_536

Run = Callable[[Config, "Departure"], Awaitable[None]]


def read_config(path: Path | None, flags: dict[str, str]) -> Config:
    """Build the configuration from the file, the environment and the flags.

    Raises:
        ConfigError: a value is wrong, the file cannot be read, or the node's files lie in another folder.
    """
    text = None
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8-sig")  # editors of Windows write a byte order mark
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"{path}: the configuration cannot be read: {reason}") from error
    built = build(text=text, file=str(path), environment=os.environ, flags=flags)
    if path is not None:
        _check_folder(path, built)
    return built


def _check_folder(path: Path, built: Config) -> None:
    """Check that a node is not started in another folder than that of its files.

    Otherwise it would begin with an empty file, and other nodes would refuse it as a node that has lost its file.
    """
    names = [built.database] + ([built.security.files(built.node).ca] if built.security.encrypts else [])
    for name in names:
        if not Path(name).is_absolute() and not Path(name).exists() and (path.parent / name).exists():
            raise ConfigError(
                f"{path}: {name} is in {path.parent.resolve()}, and not in {Path.cwd()}, where this is started; start "
                "it in that folder, or write whole paths"
            )


def read_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """Return the values that --set gives, by key.

    Raises:
        UsageError: a value does not have the form KEY=VALUE.
    """
    flags: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting}: write KEY=VALUE, such as --set suspicion_ms=2000")
        flags[key.strip()] = value.strip()
    return flags


@click.command()
@click.option("-c", "--config", type=click.Path(path_type=Path), envvar="BEDROCKISH_CONFIG", help="The TOML file.")
@click.option("--node", metavar="NAME", help="Name of this node.")
@click.option("--database", metavar="FILE", help="The database file; created if it does not exist.")
@click.option("--listen", metavar="HOST:PORT", help="The address to which peers and clients connect.")
@click.option("--http", metavar="HOST:PORT", help="The address of HTTP; by default none.")
@click.option("--cluster", metavar="NAME", help="Name of the cluster.")
@click.option("--peer", "peers", metavar="NAME=HOST:PORT", multiple=True, help="A founding member; once for each.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any other key of the configuration.")
@click.option("--log-level", type=click.Choice(LEVELS), help="The lowest level to log.")
@click.option("--log-json", is_flag=True, help="Log JSON lines.")
def serve(
    config: Path | None,
    node: str | None,
    database: str | None,
    listen: str | None,
    http: str | None,
    cluster: str | None,
    peers: tuple[str, ...],
    settings: tuple[str, ...],
    log_level: str | None,
    log_json: bool,
) -> None:
    """Run a node until SIGTERM or SIGINT."""
    flags = read_settings(settings)
    given = {"node": node, "database": database, "listen": listen, "http": http, "cluster": cluster}
    given["level"] = log_level
    flags.update({key: value for key, value in given.items() if value is not None})
    if peers:
        flags["peers"] = ",".join(peers)
    if log_json:
        flags["json"] = "true"
    built = read_config(config, flags)
    logs.set_up(built.log.level, built.node, as_json=built.log.json)
    prepare_process()
    from bedrockish.daemon import serve as run_node

    run(run_node, built)


def run(run_node: Run, config: Config) -> None:
    """Run a node until a signal ends it."""
    trio.run(run_until_signal, run_node, config)
    _end_past_workers()


def _end_past_workers() -> None:
    """End the process at once if a background worker does not stop; the node's file is closed by now.

    Otherwise the interpreter, when it frees the connection that the worker's thread uses, would wait for that thread.
    """
    from bedrockish.node.scheduling.workers import any_at_work

    if any_at_work():
        logging.shutdown()
        os._exit(0)


def prepare_process() -> None:
    """Let this process open as many files as the machine allows: each link and each reader needs some.

    Raises:
        ConfigError: a limit of the process is too low for a node.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if why := too_low():
        raise ConfigError(why)


async def run_until_signal(run_node: Run, config: Config) -> None:
    """Run a node. SIGTERM or SIGINT stops it in order, a second one at once; SIGHUP reads its certificates again.

    Raises:
        UnsupportedError: this system is not Linux.
    """
    check_linux("a node")
    from bedrockish.node.departure import Departure

    departure = Departure()

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            leaving = False
            async for number in signals:
                if number == signal.SIGHUP:
                    departure.reload()
                    continue
                if leaving:
                    os._exit(128 + number)  # all promises are durable, so a node may stop at any moment
                leaving = True
                logger.info("%s: leaving", signal.Signals(number).name)
                nursery.start_soon(departure.leave)

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        with departure.scope:
            await run_node(config, departure)
        nursery.cancel_scope.cancel()
