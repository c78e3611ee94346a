"""Runs chaos, prints the events and the verdict, and exits with 1 if a promise was broken.

``python -m tools.chaos --nodes 3 --minutes 30 --seed 1``
"""

import argparse
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from tools.chaos.faults import FAULTS, MEMBER
from tools.chaos.run import Plan, run
from tools.cluster import DemoError, unwrap


def main(arguments: list[str] | None = None) -> int:
    """Run chaos as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.chaos", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="the number of nodes (3)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, metavar="M", help="the minutes of faults")
    length.add_argument("--seconds", type=float, metavar="S", help="the seconds of faults (60)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the choices of clients and faults (1)")
    parser.add_argument(
        "--faults", default=",".join(FAULTS), help=f"the kinds of faults ({','.join(FAULTS)}), also {MEMBER}"
    )
    parser.add_argument("--clients", type=int, default=3, metavar="C", help="clients for each node (3)")
    parser.add_argument("--directory", type=Path, help="a new directory for history and files, which are then kept")
    parser.add_argument("--files", action="store_true", help="run the clients as programs on the files of the nodes")
    parser.add_argument("--learner", action="store_true", help="add a node that only reads, with clients of its own")
    parser.add_argument("--debug", action="store_true", help="let nodes log every message, which is slower")
    chosen = parser.parse_args(arguments)
    faults = tuple(filter(None, chosen.faults.split(",")))
    if not faults or not set(faults) <= {*FAULTS, MEMBER}:
        parser.error(f"--faults: there is {', '.join((*FAULTS, MEMBER))}")
    if "partition" in faults and (MEMBER in faults or chosen.learner):
        parser.error(f"--faults: {MEMBER} and --learner need links that cannot be cut; leave partition out")
    if not 1 <= chosen.nodes <= 26 or chosen.clients < 1:
        parser.error("--nodes should be 1 to 26, --clients at least 1")
    if chosen.directory is not None and chosen.directory.exists() and any(chosen.directory.iterdir()):
        parser.error(f"--directory: {chosen.directory} is not empty")
    seconds = chosen.minutes * 60 if chosen.minutes is not None else chosen.seconds or 60.0
    level = "debug" if chosen.debug else "info"
    plan = Plan(chosen.nodes, seconds, chosen.seed, faults, chosen.clients, level, chosen.files, chosen.learner)
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="bedrockish-chaos-"))
    began = time.monotonic()
    say = partial(_say, time.monotonic())
    try:
        verdict = trio.run(run, plan, directory, say)
    except (DemoError, BaseExceptionGroup) as error:
        found = unwrap(error)
        if not isinstance(found, DemoError):
            raise
        print(f"error: {found}; files: {directory}", file=sys.stderr)
        return 2
    for name, count in verdict.counts.items():
        print(f"{count:10,}  {name}")
    for wrong in verdict.wrong:
        print(f"WRONG: {wrong}")
    print(f"{'BROKEN' if verdict.wrong else 'no anomaly'}; {plan}; took {time.monotonic() - began:.0f} s")
    if verdict.wrong or chosen.directory is not None:
        print(f"history and files: {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if verdict.wrong else 0


def _say(began: float, text: str) -> None:
    print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
