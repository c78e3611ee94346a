"""Functions and a collation for the nodes of a test; one waits for a file that the test puts next to the node's own."""

import time
from pathlib import Path

import apsw

BOUND_S = 40.0


def shout(*values: object) -> str:
    return f"{values[0]}!".upper()


def backwards(left: str, right: str) -> int:
    return (left < right) - (left > right)


def wait_for(*names: object) -> str:
    """Wait until the test has made a file, and return its name."""
    name = str(names[0])
    until = time.monotonic() + BOUND_S
    while not Path(name).exists() and time.monotonic() < until:
        time.sleep(0.01)
    return name


def register(connection: apsw.Connection) -> None:
    """Add the functions and the collation."""
    connection.create_scalar_function("shout", shout, 1, deterministic=True)
    connection.create_scalar_function("wait_for", wait_for, 1)
    connection.create_collation("backwards", backwards)
