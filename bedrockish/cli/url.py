"""Commands whose first argument is the URL of a cluster, by default what BEDROCKISH_URL says."""

import os

import click

from bedrockish.api.url import SCHEME
from bedrockish.client.trio_client import URL_VARIABLE
from bedrockish.errors import ConfigError


class UrlCommand(click.Command):
    """A command with ``url`` as its first argument, which may be left out where the environment has it.

    Click fills required arguments from the left, so with one word too few it would take the next one for the URL. All
    our URLs begin with the same scheme, so whether one was given can be seen before.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the URL of the environment first if none is among the words.

        Raises:
            ConfigError: there is none in the environment either, and too few words.
        """
        if any(word.lower().startswith(f"{SCHEME}:") for word in args):
            return super().parse_args(ctx, args)
        url = os.environ.get(URL_VARIABLE)
        if url:
            return super().parse_args(ctx, [url, *args])
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            raise ConfigError(
                f"no URL: name some nodes, as in {SCHEME}://host:7373, before the rest, or set {URL_VARIABLE}"
            ) from error


url_argument = click.argument("url", metavar="[URL]")


def url_at(url: str, address: str) -> str:
    """Return a URL that is like another one and names one node."""
    scheme, separator, rest = url.partition("://")
    before, _, query = rest.partition("?")
    login, at, _ = before.rstrip("/").rpartition("@")
    options = [part for part in query.split("&") if part and not part.startswith(("discover=", "choice="))]
    return f"{scheme}{separator}{login}{at}{address}/" + (f"?{'&'.join(options)}" if options else "")
