"""``.backup`` and ``.restore``: the whole database into a file, and out of one."""

import os
from pathlib import Path

import trio

from bedrockish.cli.shell.session import Shell
from bedrockish.client.trio_client import URL_VARIABLE
from bedrockish.errors import UsageError


def back_up_to(shell: Shell, words: list[str]) -> None:
    """Copy the file of a node, with its journal; see ``bedrockish backup``.

    Raises:
        BedrockishError: no node gives a copy, or the file cannot be written.
    """
    from bedrockish.node.cluster.join import back_up  # the whole node is behind it

    path = Path(words[0])
    size = trio.run(back_up, shell.url or os.environ.get(URL_VARIABLE, ""), path)
    if shell.is_for_people:
        shell.say(f"{path}: {size} bytes")


def restore_from(shell: Shell, words: list[str]) -> None:
    """Make the content of a SQLite file that of the cluster, which has none yet; see ``bedrockish import``.

    Raises:
        UsageError: a transaction is open, or the cluster is not empty.
        BedrockishError: it cannot be replicated.
    """
    from bedrockish.cli.database import describe, run_import

    if shell.connection.in_transaction:
        raise UsageError(".restore makes transactions of its own; COMMIT or ROLLBACK first")
    loaded = run_import(shell.url, Path(words[0]), add=False, again=False)
    shell.changed_schema += 1
    if shell.is_for_people:
        for line in describe(loaded):
            shell.say(line)
    if loaded.left_out:
        raise UsageError(f"restored, but left out: {'; '.join(loaded.left_out)}")
