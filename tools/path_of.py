"""The way of one INSERT through three nodes: the functions that run, by file, in order.

``python -m tools.path_of`` starts three nodes and a client in one process, sends the same INSERT until everything is
warm, records some more, and prints through how many files and functions of ours they went, and the shortest of these
ways: each file with its functions in the order in which they were first called. A test compares
``docs/architecture.md`` with it.
"""

import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from bedrockish import open_client
from bedrockish.config.config import build
from bedrockish.daemon import serve
from tools.cluster import ROOT, free_ports

WARM = 30  # times that the statement was run before
TRIES = 20  # on a busy machine there is a heartbeat in most of them
OURS = ("bedrockish", "journal", "net")

Step = tuple[str, str]


async def record(place: Path) -> list[list[Step]]:
    """Return the functions that each of some INSERTs calls, in order; each as its file and its qualified name."""
    names = ("A", "B", "C")
    ports = dict(zip(names, free_ports(3), strict=True))
    peers = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in ports.items())
    tries: list[list[Step]] = []

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            tries[-1].append((frame.f_code.co_filename, frame.f_code.co_qualname))

    async with trio.open_nursery() as nursery:
        for name, port in ports.items():
            text = (
                f'node = "{name}"\ndatabase = "{place / name}.sqlite"\nlisten = "127.0.0.1:{port}"\n[peers]\n{peers}\n'
            )
            nursery.start_soon(serve, build(text=text, environment={}, flags={}))
        url = "bedrockish://" + ",".join(f"127.0.0.1:{port}" for port in ports.values())
        async with open_client(f"{url}/?connect_timeout=30") as client:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", timeout=30)
            for number in range(WARM):
                await client.execute("INSERT INTO t VALUES (?, 'x')", (number,))
                await trio.sleep(0.05)
            for number in range(WARM, WARM + TRIES):
                tries.append([])
                sys.setprofile(note)
                try:
                    await client.execute("INSERT INTO t VALUES (?, 'x')", (number,))
                    await trio.sleep(0.02)  # the others take the COMMIT in
                finally:
                    sys.setprofile(None)
        nursery.cancel_scope.cancel()
    return [[(where.removeprefix(f"{ROOT}/"), name) for where, name in steps if inside(where)] for steps in tries]


def shortest(ways: Iterable[list[Step]]) -> list[Step]:
    """Return the way with the fewest functions; in the others a heartbeat ran in between."""
    return min(ways, key=lambda steps: len(set(steps)))


def inside(file: str) -> bool:
    """Say whether a file is the project's own code."""
    return file.startswith(tuple(f"{ROOT / folder}/" for folder in OURS))


def first_calls(steps: Iterable[Step]) -> list[Step]:
    """Return each function once, in the order of its first call."""
    return list(dict.fromkeys(steps))


def main() -> None:
    """Print the way."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place:
        ways = trio.run(record, Path(place))
    counts = [(len({file for file, _ in way}), len(set(way)), len(way)) for way in ways]
    spread = [f"{min(each)} to {max(each)}" for each in zip(*counts, strict=True)]
    print(f"{len(ways)} INSERTs went through {spread[0]} files and {spread[1]} functions, in {spread[2]} calls")
    steps = first_calls(shortest(ways))
    files = list(dict.fromkeys(file for file, _ in steps))
    print(f"the shortest: {len(files)} files, {len(steps)} functions")
    for file in files:
        print(f"  {file}: {', '.join(name for where, name in steps if where == file)}")


if __name__ == "__main__":
    main()
