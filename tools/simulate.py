"""Runs seeds through the simulator, and prints the laws that break.

tools/simulate --seed 42 -v            one world, one line per event
tools/simulate --seeds 100 --jobs 4    seeds 1 to 100, each twice, in four processes
tools/simulate --minutes 10            as many seeds as ten minutes allow
tools/simulate --seed 42 --shrink 400  the smallest world that breaks the same law, within 400 tries
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from tools.sim.options import Options, draw_options
from tools.sim.shrink import Shrinker
from tools.sim.world import LawBrokenError, World


def run_seed(options: Options, *, verbose: bool = False, twice: bool = False) -> tuple[LawBrokenError | None, World]:
    """Run one world; return the broken law, or None, and the world. With ``twice``, a second run must be equal."""
    world = World(options, print if verbose else None)
    broken = None
    try:
        world.run()
    except LawBrokenError as error:
        broken = error
    if twice and broken is None:
        again = World(options)
        again.run()
        if again.digest.digest() != world.digest.digest():
            broken = LawBrokenError("a seed is one story", "two runs of this seed differ")
    return broken, world


@dataclass(frozen=True)
class Finding:
    """The result of one seed; ``law`` is empty if no law was broken, and ``seconds`` is processor time."""

    options: Options
    law: str
    story: str
    digest: str  # the digest of the world's events, in hexadecimal
    counts: Counter[str]
    seconds: float


def find(options: Options, *, verbose: bool, twice: bool) -> Finding:
    """Run one seed; an error of the simulator itself counts as a broken law, so that its seed is reported."""
    began = time.process_time()
    try:
        broken, world = run_seed(options, verbose=verbose, twice=twice)
    except Exception:
        story = traceback.format_exc()
        return Finding(options, "the simulator runs", story, "", Counter(), time.process_time() - began)
    law, story = (broken.law, broken.story) if broken is not None else ("", "")
    return Finding(options, law, story, world.digest.hexdigest(), world.counts, time.process_time() - began)


def find_all(find_one: Callable[[Options], Finding], worlds: Iterable[Options], processes: int) -> Iterator[Finding]:
    """Yield the results of worlds, which run in some processes, in the order in which they end."""
    if processes <= 1:
        yield from map(find_one, worlds)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running: set[Future[Finding]] = set()
        for options in worlds:  # read one by one, because with --minutes their number is not known
            running.add(pool.submit(find_one, options))
            if len(running) >= 3 * processes:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        for future in as_completed(running):
            yield future.result()


def main(arguments: list[str] | None = None) -> int:
    """Run the simulations of the command line."""
    parser = argparse.ArgumentParser(prog="tools/simulate", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--seeds", type=int, default=20, metavar="K", help="the number of seeds to run (20)")
    parser.add_argument("--start", type=int, default=1, metavar="S", help="the first seed (1)")
    parser.add_argument("--minutes", type=float, metavar="M", help="run seeds for M minutes")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="the number of processes (1)")
    parser.add_argument("--once", action="store_true", help="do not run each seed a second time to compare")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override an option of the worlds"
    )
    parser.add_argument("--shrink", type=int, default=0, metavar="RUNS", help="make a failing world smaller")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first broken law")
    parser.add_argument("-v", "--verbose", action="store_true", help="print a line for each event")
    chosen = parser.parse_args(arguments)
    overrides = dict(override(text, parser) for text in chosen.set)
    began = time.monotonic()
    find_one = partial(find, verbose=chosen.verbose, twice=not chosen.once)
    worlds = (draw_options(seed).with_(**overrides) for seed in _seeds(chosen, began))
    total: Counter[str] = Counter()
    failures, seconds = 0, 0.0
    for found in find_all(find_one, worlds, 1 if chosen.verbose else chosen.jobs):
        total.update(found.counts)
        total["seeds"] += 1
        seconds += found.seconds
        if chosen.seed is not None:
            print(f"seed {found.options.seed}: {found.options}\nstory {found.digest}", flush=True)
        if found.law:
            failures += 1
            _tell(found, chosen.shrink)
            if not chosen.keep_going:
                break
    _sum_up(total, failures, seconds, time.monotonic() - began)
    return 1 if failures else 0


def _tell(found: Finding, runs: int) -> None:
    options = found.options
    print(f"seed {options.seed} breaks a law: {found.law}\n  {found.story}\n  {options}", flush=True)
    if runs:
        small = Shrinker(run_seed, options, runs).shrink()
        print(f"  smaller: seed {small.seed}: {small}", flush=True)


def _sum_up(total: Counter[str], failures: int, seconds: float, took: float) -> None:
    for name, count in sorted(total.items()):
        print(f"{count:12,}  {name}")
    print(f"{total['seeds']} seeds, {failures} failed, {seconds / 3600:.3f} core-hours, {took:.1f} s")


def override(text: str, parser: argparse.ArgumentParser) -> tuple[str, object]:
    """Return name and value of a text ``NAME=VALUE``, the value in the type of the option."""
    name, _, value = text.partition("=")
    default = getattr(Options(0), name, None)
    if default is None:
        parser.error(f"there is no option {name}; see tools/sim/options.py")
    if isinstance(default, tuple):
        return name, tuple(part for part in value.split(",") if part)
    if isinstance(default, bool):
        return name, value.lower() in ("1", "true", "yes")
    return name, type(default)(value)


def _seeds(chosen: argparse.Namespace, began: float) -> Iterable[int]:
    if chosen.seed is not None:
        return [chosen.seed]
    if chosen.minutes is None:
        return range(chosen.start, chosen.start + chosen.seeds)
    return _by_the_clock(chosen.start, began + chosen.minutes * 60)


def _by_the_clock(seed: int, end: float) -> Iterator[int]:
    while time.monotonic() < end:
        yield seed
        seed += 1


if __name__ == "__main__":
    sys.exit(main())
