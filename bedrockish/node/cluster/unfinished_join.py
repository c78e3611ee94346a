"""The mark of a join that has not finished its node's file: until then, ``serve`` would found another cluster there.

Clients with the node's address in their URL would write to that other cluster, and these commits would never reach the
cluster that has admitted the node.
"""

import os
from contextlib import suppress
from pathlib import Path

from bedrockish.common.durable_files import sync
from bedrockish.errors import ConfigError

SUFFIX = ".unjoined"


def mark_join(path: Path) -> bool:
    """Mark a database's path durably before the cluster admits its node; return whether it was marked already.

    Raises:
        ConfigError: the mark cannot be written.
    """
    mark = _mark_of(path)
    try:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        sync(mark.parent)
    except FileExistsError:
        return True
    except OSError as error:
        raise ConfigError(f"{mark} cannot be written: {error.strerror}; name a folder that may be written") from error
    return False


def end_join(path: Path) -> None:
    """Remove the mark, if there is one: the file is whole, or the cluster has not admitted the node."""
    with suppress(OSError):
        _mark_of(path).unlink()


def check_joined(path: Path) -> None:
    """Make sure that no join of the node is unfinished.

    Raises:
        ConfigError: a cluster may have admitted the node, which has no file yet.
    """
    if (mark := _mark_of(path)).exists():
        raise ConfigError(
            f"'bedrockish join' was interrupted before {path.name} was whole: run it again; to found another cluster "
            f"here instead, remove {mark.name}"
        )


def _mark_of(path: Path) -> Path:
    file = path.resolve()
    return file.with_name(file.name + SUFFIX)
