"""What it costs a node to tell what a statement reads, in instructions of the processor, which load does not change.

Statements are compared with the same node without reads that depend on rows: where there are none, there must be no
difference, and a join that gives 50 rows may take half as much again. It is also compared with its SQL alone, run by
the same library on plain SQLite, where nobody reads a request, measures and encodes its result, or gathers keys.

    tools/bench reads
    tools/bench reads --beside ../v0.1.0 insert join     # and with all that another release does

Each figure is a difference of two runs under ``valgrind``, with few and with many repetitions. What a process does
besides differs by some percent from run to run, and always adds: the smaller of two counts.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.cluster import SOURCES, DemoError, clean_environment

FEW, MANY = 40, 240
RUNS = 2
MOST_JOIN, MOST_SIMPLE = 1.5, 1.01  # times what it takes without reads that depend on rows
WORK = Path(__file__).with_name("reads_work.py")
SIMPLE = ("insert", "update", "transfer", "select", "range", "in list")


def instructions(sources: Sequence[Path], work: str, count: int) -> int:
    """Return how many instructions a process executes that does some work so many times.

    Raises:
        DemoError: it cannot be counted.
    """
    program = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    here = ["-P", str(WORK), work, str(count)]
    environment = {**clean_environment(sources), "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            [*program, sys.executable, *here], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    except OSError as error:
        raise DemoError(f"instructions are counted with valgrind, and it does not start: {error}") from error
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if found is None or done.returncode:
        raise DemoError(f"{work!r} cannot be counted: {done.stderr[-500:]}")
    return int(found[1].replace(",", ""))


def each(sources: Sequence[Path], work: str) -> float:
    """Return the thousands of instructions of doing some work once."""
    few = min(instructions(sources, work, FEW) for _ in range(RUNS))
    many = min(instructions(sources, work, MANY) for _ in range(RUNS))
    return (many - few) / (MANY - FEW) / 1_000


def main() -> int:
    """Run from the command line; 1 if something costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", choices=[*SIMPLE, "join", []], metavar="WORK", help="which; all by default")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another release, to compare with")
    options = parser.parse_args()
    show: Callable[[str, float, float, str], None] = lambda what, ours, theirs, of: print(  # noqa: E731
        f"{what:10}{ours:10.1f} thousand instructions{ours / theirs:10.3f} of {of}", flush=True
    )
    beside = options.beside.resolve() if options.beside else None
    failed = False
    for work in options.works or (*SIMPLE, "join"):
        ours = each(SOURCES, work)
        without = each(SOURCES, f"without {work}")
        show(work, ours, without, "it without reads that depend on rows")
        failed = failed or ours > (MOST_JOIN if work == "join" else MOST_SIMPLE) * without
        if work == "join":
            show(work, ours, each(SOURCES, "plain join"), "its SQL alone on plain SQLite")
        if beside is not None:
            show(work, ours, each((beside, beside / "journal", beside / "net"), work), beside.name)
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DemoError as problem:
        sys.exit(str(problem))
