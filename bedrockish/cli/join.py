"""``bedrockish join``: make this node one of a running cluster, and run it."""

from pathlib import Path

import click
import trio

from bedrockish.cli.serve import prepare_process, read_config, read_settings, run
from bedrockish.cli.url import UrlCommand
from bedrockish.common import log_format as logs
from bedrockish.config.config import Config


@click.command(cls=UrlCommand)
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), envvar="BEDROCKISH_CONFIG", help="The new node's TOML file."
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any key of the configuration.")
@click.option("--replay", is_flag=True, help="Fetch the whole journal from several nodes instead of a copy of a file.")
@click.option("--voter", is_flag=True, help="Become a voter as soon as it has caught up.")
@click.option("--no-serve", is_flag=True, help="Only make the file; start the node with 'bedrockish serve' then.")
def join(url: str, config: Path | None, settings: tuple[str, ...], replay: bool, voter: bool, no_serve: bool) -> None:
    """Join the cluster at URL with a new, empty node, and run it until SIGTERM or SIGINT.

    The node becomes a learner, which has all data and answers reads. 'bedrockish member
    promote', or --voter, makes it a voter, which leads and approves transactions. From then on it is started like any
    other node, with 'bedrockish serve'.
    """
    built = read_config(config, read_settings(settings))
    logs.set_up(built.log.level, built.node, as_json=built.log.json)
    prepare_process()
    from bedrockish.daemon import load_http, serve
    from bedrockish.node.cluster.join import join as join_cluster
    from bedrockish.node.cluster.join import promote_when_ready
    from bedrockish.node.departure import Departure

    async def join_and_serve(config: Config, departure: Departure) -> None:
        if config.http is not None:
            load_http()  # a missing package ends the program before the cluster has the member
        await join_cluster(config, url, replay=replay)
        if no_serve:
            return
        async with trio.open_nursery() as nursery:
            if voter:
                nursery.start_soon(promote_when_ready, url, config)
            await serve(config, departure)

    run(join_and_serve, built)
