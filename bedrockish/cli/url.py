"""Commands whose first argument is the URL of a cluster, by default the value of BEDROCKISH_URL."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bedrockish.api.url import SCHEME
from bedrockish.client.trio_client import URL_VARIABLE
from bedrockish.errors import ConfigError

DOWN_S = 1.0  # timeout for a node that the other nodes do not reach


class UrlCommand(click.Command):
    """A command with ``url`` as its first argument, which may be left out if the environment has the URL.

    Click fills required arguments from the left, so without a URL it would take the next word for the URL. All our URLs
    begin with the same scheme, so this command recognises a URL before click parses the words.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.insert(0, click.Argument(["url"], metavar="[URL]"))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the URL of the environment first if no word is a URL.

        Raises:
            ConfigError: the environment has no URL either, and too few words were given.
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
                f"no URL: name some nodes first, as in {SCHEME}://host:7373, or set {URL_VARIABLE}"
            ) from error


class UrlGroup(click.Group):
    """A group of commands with a URL; a URL before the name of the command is an error that names the right order."""

    command_class = UrlCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command.

        Raises:
            click.UsageError: a URL is in the command's place; the error does not repeat it, as it may have a password.
        """
        if args and args[0].lower().startswith(f"{SCHEME}:"):
            known = next((word for word in args[1:] if word in self.commands), "COMMAND")
            there = "" if known in self.commands else f"; there is {', '.join(self.commands)}"
            raise click.UsageError(f"the URL comes after the command: bedrockish {ctx.info_name} {known} URL …{there}")
        return super().resolve_command(ctx, args)


class LocalPath(click.Path):
    """A path of this machine. A URL is refused, because it would name a new directory called ``s3:``.

    Args:
        instead: the remedy, for the error text.
    """

    def __init__(self, instead: str, **options: Any) -> None:
        super().__init__(path_type=Path, **options)
        self._instead = instead

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path; an error does not repeat a URL, which may have a password in it."""
        if "://" in os.fspath(value):
            self.fail(f"this is a URL, and no path; {self._instead}", param, ctx)
        return super().convert(value, param, ctx)


def url_of(url: str, member: Mapping[str, Any]) -> str:
    """Return ``url`` for one member only; for a member that is down, with a short timeout."""
    scheme, separator, rest = url.partition("://")
    before, _, query = rest.partition("?")
    login, at, _ = before.rstrip("/").rpartition("@")
    options = [part for part in query.split("&") if part and not part.startswith(("discover=", "choice="))]
    if not member.get("up", True) and not any(part.startswith("connect_timeout=") for part in options):
        options.append(f"connect_timeout={DOWN_S:g}")
    return f"{scheme}{separator}{login}{at}{member['address']}/" + (f"?{'&'.join(options)}" if options else "")
