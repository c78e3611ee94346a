"""``bedrockish publish``: send the change feed to a webhook or to Kafka, as messages such as Debezium's."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
import trio

from bedrockish.api.requests import STALE
from bedrockish.cli.url import UrlCommand, url_argument
from bedrockish.client.feed import Changes, may_pass
from bedrockish.client.trio_client import Client, open_client, target_of
from bedrockish.errors import BedrockishError, ConfigError, UnavailableError
from bedrockish.transfer.publish import MESSAGES, Message, Place, Webhook, messages_of
from bedrockish_journal.feed.change_feed import Committed, parse_cursor

if TYPE_CHECKING:
    from bedrockish.transfer.publish import Sink

SECRET = "BEDROCKISH_WEBHOOK_SECRET"
TOGETHER_S = 0.2  # that a message waits for others
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0
SAY_S = 60.0  # between two lines about the same trouble
ENDS_S = 60.0  # after which who does not follow gives up
FILE = click.Path(path_type=Path)
_KEY = "SELECT name FROM pragma_table_xinfo(?) WHERE pk ORDER BY pk"


@click.command(cls=UrlCommand)
@url_argument
@click.option("--to", required=True, metavar="URL", help="A webhook, https://…, or topics, kafka://host:9092,…/PREFIX.")
@click.option("--place", type=FILE, required=True, metavar="FILE", help="The file that keeps how far it has got.")
@click.option("--after", metavar="CURSOR", help="Where a new place begins; 'bedrockish export' prints one.")
@click.option("--follow", is_flag=True, help="Wait for more, until interrupted; else end at what is safe now.")
@click.option("--name", default="bedrockish", show_default=True, help="What the messages call the cluster.")
@click.option("--hold", metavar="NAME", help="Keep the journal for a reader of this name, as far as it has not come.")
@click.option("--options", type=FILE, metavar="FILE", help="Of librdkafka: a line 'name = value' for each.")
def publish(
    url: str,
    to: str,
    place: Path,
    after: str | None,
    follow: bool,
    name: str,
    hold: str | None,
    options: Path | None,
) -> None:
    """Send each change of a row as a message, in order, at least once; its id is the same if it comes again.

    A webhook's messages are signed with the secret in BEDROCKISH_WEBHOOK_SECRET, if there is one.
    """
    target_of(url)
    parse_cursor(after)
    sink = _sink(to, options)
    kept = Place(place)
    with kept.held() as cursor:
        trio.run(_publish, url, sink, kept, cursor or after, follow, name, hold)


def _sink(to: str, options: Path | None) -> "Sink":
    try:
        asked = urlsplit(to)
        host, _ = asked.hostname, asked.port if asked.scheme != "kafka" else None
    except ValueError as error:
        raise ConfigError(f"{to!r} is no URL: {error}") from None
    if asked.scheme in ("http", "https") and host:
        if options is not None:
            raise ConfigError("--options are those of Kafka; a webhook has none")
        if asked.username is not None:
            raise ConfigError("a webhook's URL takes no user and password; put a token into its path or query")
        return Webhook(to, os.environ.get(SECRET, "").encode())
    prefix = asked.path.strip("/")
    if asked.scheme != "kafka" or not asked.netloc or not prefix or "/" in prefix:
        raise ConfigError(f"--to {to!r} is neither https://… nor kafka://host:9092,host2:9092/PREFIX")
    try:
        from bedrockish.transfer.publish_kafka import Kafka, read_options
    except ImportError:
        raise ConfigError("confluent-kafka is not installed; pip install 'bedrockish[kafka]'") from None
    return Kafka(asked.netloc, prefix, read_options(options) if options is not None else {})


async def _publish(
    url: str, sink: "Sink", place: Place, cursor: str | None, follow: bool, name: str, hold: str | None
) -> None:
    async with open_client(url) as client:
        feed = Changes(client, cursor, follow=follow, hold=hold)
        keys: dict[str, Sequence[str]] = {}
        is_over = False
        while not is_over:
            messages: list[Message] = []
            last: Committed | None = None
            until = float("inf")
            while len(messages) < MESSAGES and not is_over:
                with trio.move_on_at(until) as scope:
                    try:
                        one = await anext(feed)
                    except StopAsyncIteration:
                        is_over = True
                        break
                if scope.cancelled_caught:
                    break
                await _learn(client, one, keys, follow)
                messages += messages_of(one, name, lambda table: keys.get(table, ()))
                until, last = min(until, trio.current_time() + TOGETHER_S), one
            for first in range(0, len(messages), MESSAGES):
                await _deliver(sink, messages[first : first + MESSAGES], follow)
            if last is not None:
                await trio.to_thread.run_sync(place.write, str(last.cursor))


async def _learn(client: Client, commit: Committed, keys: dict[str, Sequence[str]], follow: bool) -> None:
    """Find out the primary keys of tables that have no rowids, as they are now."""
    if commit.statements:
        keys.clear()
    for change in commit.changes:
        if change.rowid is None and change.table not in keys:
            keys[change.table] = await _key_of(client, change.table, follow)


async def _key_of(client: Client, table: str, follow: bool) -> list[str]:
    while True:
        try:
            rows = await client.execute(_KEY, [table], read=STALE)
            return [str(column) for (column,) in rows.rows]
        except BedrockishError as error:
            if not (follow and may_pass(error)):
                raise
        await trio.sleep(PAUSE_S)


async def _deliver(sink: "Sink", messages: list[Message], follow: bool) -> None:
    """Deliver messages, and try again as long as that may help."""
    began = said = -float("inf")
    pause = PAUSE_S
    while True:
        try:
            await trio.to_thread.run_sync(sink.deliver, messages)
            return
        except UnavailableError as error:
            now = trio.current_time()
            began = now if began < 0 else began
            if not follow and now - began > ENDS_S:
                raise
            if now - said > SAY_S:
                click.echo(f"{error.message}; trying again", err=True)
                said = now
        await trio.sleep(pause)
        pause = min(2 * pause, PAUSE_S_MAX)
