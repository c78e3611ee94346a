"""Takes the rules of the protocol away, one at a time, and looks whether the simulator notices.

tools/simulate would be worth little if it passed a broken protocol; this program says which faults it sees, how soon,
and, as honestly, which it does not see within so many seeds.

python -m tools.mutations [--seeds K] [NAME ...]
"""

import argparse
import sys
import time

from tools.sim.editing import Fault, in_force
from tools.sim.faulty import FAULTS
from tools.sim.options import Options, draw_hard_options, draw_wide_options
from tools.simulate import run_seed


def hunt(fault: Fault, seeds: int, seconds: float) -> tuple[int, str, float]:
    """Return the number of worlds that it took, the law that broke (empty: none did), and the seconds."""
    began = time.process_time()
    for seed in range(1, seeds + 1):
        with in_force(fault):
            broken, _ = run_seed(options_of(seed, fault))
        if broken is not None:
            sound, _ = run_seed(options_of(seed, fault))
            assert sound is None, f"seed {seed} breaks a law without any fault: {sound}"
            return seed, broken.law, time.process_time() - began
        if time.process_time() - began > seconds:
            return seed, "", seconds
    return seeds, "", time.process_time() - began


def options_of(seed: int, fault: Fault) -> Options:
    """Return a world in which a fault may show."""
    options = draw_wide_options(seed) if seed % 4 == 0 else draw_hard_options(seed)
    voters = dict(fault.options).get("voters", options.voters)
    assert isinstance(voters, int)
    options = options.with_(dead=min(options.dead, (voters - 1) // 2))
    return options.with_(**dict(fault.options))


def main(arguments: list[str] | None = None) -> int:
    """Hunt for the faults that are named, or for all."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutations")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which faults (all)")
    parser.add_argument("--seeds", type=int, default=800, help="worlds for each (800)")
    parser.add_argument(
        "--seconds", type=float, default=120, help="and no more seconds of a processor than that for each (120)"
    )
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in FAULTS]
    if unknown:
        parser.error(f"no fault is called {unknown[0]!r}; there is {', '.join(FAULTS)}")
    missed = 0
    for name in chosen.names or FAULTS:
        seeds, law, took = hunt(FAULTS[name], chosen.seeds, chosen.seconds)
        missed += not law
        print(f"{name:34} {seeds:4} worlds {took:6.1f} s  {law or 'NOT CAUGHT'}", flush=True)
    print(f"{missed} not caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
