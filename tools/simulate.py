"""Runs seeds through the simulator, and says which law breaks where.

tools/simulate --seed 42 -v        one world, one line per event
tools/simulate --seeds 100         seeds 1 to 100
tools/simulate --minutes 10        as many as fit
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from tools.sim.options import Options, draw_hard_options, draw_options
from tools.sim.shrink import shrink
from tools.sim.world import LawBrokenError, World


def run_seed(options: Options, *, verbose: bool = False, twice: bool = False) -> tuple[LawBrokenError | None, World]:
    """Run one world; the law that it broke, if it did."""
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
            broken = LawBrokenError("a seed is one story", "two runs of it differ")
    return broken, world


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools/simulate", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seeds", type=int, default=20, metavar="K", help="run K seeds (20)")
    parser.add_argument("--start", type=int, default=1, metavar="S", help="the first of them (1)")
    parser.add_argument("--minutes", type=float, metavar="M", help="go on for M minutes")
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override an option")
    parser.add_argument("--hard", action="store_true", help="small, hot worlds full of needless recoveries")
    parser.add_argument("--shrink", type=int, default=0, metavar="RUNS", help="make a failing world smaller")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first broken law")
    parser.add_argument("-v", "--verbose", action="store_true", help="one line per event")
    chosen = parser.parse_args(arguments)
    overrides = dict(_override(text, parser) for text in chosen.set)
    began = time.monotonic()
    total: Counter[str] = Counter()
    failures = 0
    for seed in _seeds(chosen, began):
        options = (draw_hard_options if chosen.hard else draw_options)(seed).with_(**overrides)
        if chosen.verbose or chosen.seed is not None:
            print(f"seed {seed}: {options}", flush=True)
        broken, world = run_seed(options, verbose=chosen.verbose, twice=chosen.twice)
        total.update(world.counts)
        total["seeds"] += 1
        if chosen.seed is not None:
            print(f"story {world.digest.hexdigest()}")
        if broken is not None:
            failures += 1
            print(f"seed {seed} breaks a law: {broken.law}\n  {broken.story}\n  {options}", flush=True)
            if chosen.shrink:
                small = shrink(options, lambda other: _law(run_seed(other)[0]), chosen.shrink)
                print(f"  smaller: {small}", flush=True)
            if not chosen.keep_going:
                break
    took = time.monotonic() - began
    print(" ".join(f"{name}={total[name]}" for name in sorted(total)))
    print(f"{total['seeds']} seeds, {failures} failed, {took:.1f} s, {total['events'] / max(took, 1e-9):,.0f} events/s")
    return 1 if failures else 0


def _law(broken: LawBrokenError | None) -> str:
    return broken.law if broken is not None else ""


def _override(text: str, parser: argparse.ArgumentParser) -> tuple[str, object]:
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
