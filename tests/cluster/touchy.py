"""A function for the nodes of a test that fails on order, like a faulty machine.

The file ``fault-NODE`` next to the nodes' files has the number of calls that still succeed, and then ``once``,
``always`` or ``exit``: raise an error once or always, or end the process.
"""

import os
import sys
from pathlib import Path

import apsw


def touchy(text: str) -> str:
    """Return the text."""
    plan = Path(f"fault-{Path(sys.argv[-1]).stem}")
    if text != "poison" or not plan.exists():
        return text
    count, what = plan.read_text().split()
    if int(count):
        plan.write_text(f"{int(count) - 1} {what}")
        return text
    if what == "exit":
        plan.write_text("0 always")
        os._exit(77)
    if what == "once":
        plan.unlink()
    raise RuntimeError("this machine computes wrongly")


def register(connection: apsw.Connection) -> None:
    connection.create_scalar_function("touchy", lambda *values: touchy(str(values[0])), 1, deterministic=True)
