"""A program that has used up its descriptors is told so when it opens a node's file."""

import os
import resource
from contextlib import suppress
from pathlib import Path

import bedrockish
from bedrockish.errors import UnavailableError
from bedrockish.local import connections
from tools.cluster import LocalNode


def refusal(database: Path) -> str:
    """Open a file, and return why it cannot be used; empty if it can."""
    try:
        with bedrockish.connect(database):
            return ""
    except UnavailableError as error:
        return error.message


def test_program_without_descriptors_is_told_the_limit(node: LocalNode) -> None:
    """The advice to start the node would be wrong: the node runs."""
    assert not refusal(node.database)
    connections.KEPT.close_all()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held, told = list[int](), set[str]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, before[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        while said := refusal(node.database):
            told.add(said)
            os.close(held.pop())
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not [one for one in told if "start its node" in one or "files" not in one]
    assert sum("raise the limit of files" in one for one in told) >= 2, "for the page, and for the database"
