"""A copy of a node's file while the node goes on."""

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from bedrockish.engine.durability import sync_directory
from bedrockish.errors import ConfigError


def copy(connect: Callable[[], apsw.Connection], place: Path) -> None:
    """Copy a database page by page into a new file, so that rowids stay what they are; durable when this returns.

    Args:
        connect: opens a connection that reads the database.
        place: the new file.

    Raises:
        ConfigError: the file is there already, or cannot be written.
    """
    if place.exists():
        raise ConfigError(f"{place} is there already; give another path")
    source = connect()
    try:
        target = apsw.Connection(str(place))
        try:
            with target.backup("main", source, "main") as backup:
                backup.step(-1)
        finally:
            target.close()
        with open(place, "rb") as made:
            os.fsync(made.fileno())
        sync_directory(place.resolve().parent)
    except (apsw.Error, OSError) as error:
        raise ConfigError(f"{place} cannot be written: {error}; give a path with enough free space") from error
    finally:
        source.close()
