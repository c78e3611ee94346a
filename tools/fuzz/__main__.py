"""Attacks three real nodes in every way at once, and reports whether they serve correctly afterwards.

python -m tools.fuzz [--seconds 60] [--seed 1] [--keep DIRECTORY]

Ends with 1 if a node ended, does not answer, holds other rows than the others, took more memory than it may, or if
anything was answered with an InternalError.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import trio

import bedrockish
from bedrockish.errors import BedrockishError
from tools.fuzz.attacks import attack
from tools.fuzz.lab import Lab, lab

MEMORY_MIB_MAX = 600  # a node with a higher peak is a fault
ANSWER_S = 60.0


def memory_mib(pid: int) -> int:
    """Return the peak of a process's resident memory, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def examine(made: Lab) -> list[str]:
    """Return the faults that the nodes show after the attacks."""
    wrong: list[str] = []
    for index, node in enumerate(made.nodes):
        if node.process is None or not node.is_running:
            wrong.append(f"{node.name} has ended: {node.last_words()}")
            continue
        try:
            with bedrockish.connect(made.url(index, only=True, options="discover=no")) as db:
                began = time.monotonic()
                db.execute("INSERT INTO t(x) VALUES ('afterwards')", timeout=ANSWER_S)
                took = time.monotonic() - began
                status = db.status(timeout=ANSWER_S)
        except BedrockishError as error:
            wrong.append(f"{node.name} does not write: {error.message}")
            continue
        peak, size = memory_mib(node.process.pid), node.log.stat().st_size
        print(f"{node.name}: writes after {took:.2f} s, {peak} MiB at most, log {size / 1e6:.1f} MB", flush=True)
        if peak > MEMORY_MIB_MAX:
            wrong.append(f"{node.name} took {peak} MiB")
        counts: dict[str, Any] = status["counts"]
        for name in ("internal_errors", "restarts"):
            if counts.get(name):
                wrong.append(f"{node.name} counts {counts[name]} {name}, the last: {status['internal_error_last']}")
    if differ := trio.run(made.wait_level, ANSWER_S):  # a request that its client has given up may still commit
        wrong.append(differ)
    rows = {node.name: read_rows(made, index) for index, node in enumerate(made.nodes) if node.is_running}
    if len(set(rows.values())) > 1:
        wrong.append(f"the nodes have other rows: {rows}")
    return wrong


def read_rows(made: Lab, index: int) -> str:
    """Return a summary of the table's rows at a node, or the error of the read."""
    try:
        with bedrockish.connect(made.url(index, only=True, options="discover=no")) as db:
            query = "SELECT count(*), total(id), total(length(x)) FROM t"
            return str(db.execute(query, read="strict", timeout=ANSWER_S).rows)
    except BedrockishError as error:
        return error.message


def main() -> int:
    """Attack three nodes, print the counts and the findings, and return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="the directory in which the nodes' files are kept")
    given = parser.parse_args()
    logging.getLogger("bedrockish").setLevel(logging.CRITICAL)  # without the nodes' log lines about each message
    place = nullcontext(str(given.keep)) if given.keep else tempfile.TemporaryDirectory(prefix="fuzz")
    with place as directory, lab(Path(directory) / "nodes") as made:
        attacks = attack(made, given.seconds, given.seed)
        counts: Counter[str] = Counter()
        for one in attacks:
            counts.update({f"{type(one).__name__}: {name}": count for name, count in one.counts.items()})
        for name, count in sorted(counts.items()):
            print(f"{name}: {count}")
        wrong = [finding for one in attacks for finding in one.findings] + examine(made)
    for finding in wrong:
        print(f"FOUND {finding}")
    print("well" if not wrong else f"{len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
