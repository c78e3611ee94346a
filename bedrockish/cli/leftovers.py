"""``bedrockish leftovers``: search files for values that should be erased."""

import importlib.util
import sys
from pathlib import Path

import click

from bedrockish.cli.safe_text import visible
from bedrockish.errors import UsageError
from bedrockish.transfer.leftovers import Rows, Values, leftovers

FOUND, NOT_LOOKED = 1, 3


@click.command("leftovers")
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--of", "values", metavar="VALUE", multiple=True, help="A text or a number; - reads lines from stdin.")
@click.pass_context
def leftovers_of(context: click.Context, paths: tuple[Path, ...], values: tuple[str, ...]) -> None:
    """Look for values in PATHS: nodes' files, backups, exports, and directories of them.

    Rows, journals and bytes are searched, bytes of deleted rows included. Ends with status 1 if a value is found, and
    with 3 if no value is found, but a file could not be searched.
    """
    given = [value for value in values if value != "-"]
    if "-" in values:
        given += [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    if not given:
        raise UsageError("give the values: --of VALUE, or --of - with one value per line on standard input")
    found = unseen = 0
    for one in leftovers(paths, Values(given), _parquet()):
        found += one.looked
        unseen += not one.looked
        mark = "" if one.looked else "not looked into: "
        click.echo(visible(f"{mark}{one.path}: {one.where}"))
    if not found:
        click.echo("nothing is left" if not unseen else "nothing is left in the files that could be searched")
    if found or unseen:
        context.exit(FOUND if found else NOT_LOOKED)


def _parquet() -> Rows | None:
    """Return the reader of Parquet files; None if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        return None
    from bedrockish.transfer.parquet_rows import parquet_rows

    return parquet_rows
