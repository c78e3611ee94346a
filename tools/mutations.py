"""Removes the rules of the protocol, one at a time, and tests that the model check or the simulator notices.

Both would be worth little if they passed a broken protocol. Each fault is looked for where it shows: in a scope of the
model check, if one is known for it, else in worlds of the simulator that are drawn for it. The catching scope or world
must hold with all rules in force, so it is run without the fault as well.

python -m tools.mutations [--seconds S] [NAME ...]
"""

import argparse
import sys
import time
from dataclasses import dataclass

from tools.editing import Fault, in_force
from tools.faulty import FAULTS
from tools.modelcheck.guided import ALL
from tools.modelcheck.way import search
from tools.sim.options import Options, draw_hard_options, draw_wide_options
from tools.simulate import run_seed

CONTROL_S = 10.0  # the run without the fault may take this many seconds more than the run that caught the fault


@dataclass(frozen=True)
class Catch:
    by: str
    where: str  # the scope, or the world's seed; the number of worlds if all of them held
    law: str  # the broken law, or an empty text
    seconds: float  # the processor time, including the run without the fault
    unsound: str = ""  # the law that broke without the fault, so that the result proves nothing; else an empty text
    way: tuple[str, ...] = ()  # the shortest way through a scope to the broken law, event by event


class Hunter:
    """Looks for faults, one after the other.

    Args:
        seconds: the processor time for each fault.
        worlds: the number of simulated worlds for each fault.
    """

    def __init__(self, seconds: float, worlds: int) -> None:
        self.seconds, self.worlds = seconds, worlds
        self._controls: dict[str, tuple[float, str]] = {}

    def hunt(self, name: str) -> Catch:
        """Look for one fault in the places that are known to show it."""
        fault = FAULTS[name]
        return self.in_scope(fault, fault.scope) if fault.scope else self.in_worlds(fault)

    def in_scope(self, fault: Fault, scope: str) -> Catch:
        began = time.process_time()
        with in_force(fault):
            report, way = search(ALL[scope], self.seconds)
        unsound = self._control(scope, CONTROL_S + report.seconds) if report.law else ""
        law = "" if unsound else report.law
        return Catch("model check", f"`{scope}`", law, time.process_time() - began, unsound, way)

    def _control(self, scope: str, seconds: float) -> str:
        """Explore a scope with all rules in force; return the broken law, or an empty text."""
        known = self._controls.get(scope)
        if known is None or known[0] < seconds:
            report, _ = search(ALL[scope], seconds)
            story = f"{scope}: {report.law}: {report.story}" if report.law else ""
            known = self._controls[scope] = (float("inf") if report.exhausted else seconds, story)
        return known[1]

    def in_worlds(self, fault: Fault) -> Catch:
        """Look for a fault in worlds of the simulator; report a world that breaks a law even without the fault."""
        began, unsound = time.process_time(), ""
        for seed in range(1, self.worlds + 1):
            options = options_of(seed, fault)
            with in_force(fault):
                broken, _ = run_seed(options)
            if broken is not None:
                sound, _ = run_seed(options)
                if sound is None:
                    return Catch("simulator", f"seed {seed}", broken.law, time.process_time() - began, unsound)
                unsound = unsound or f"seed {seed}: {sound}"
            if time.process_time() - began > self.seconds:
                break
        return Catch("simulator", f"{seed} worlds", "", time.process_time() - began, unsound)


def options_of(seed: int, fault: Fault) -> Options:
    """Return the options of a world in which a fault may break a law."""
    given = dict(fault.options)
    if given.pop("calm", False):
        options = Options(seed)
    else:
        options = draw_wide_options(seed) if seed % 4 == 0 else draw_hard_options(seed)
    voters = given.get("voters", options.voters)
    assert isinstance(voters, int)
    return options.with_(**{"dead": min(options.dead, (voters - 1) // 2), **given})


def main(arguments: list[str] | None = None) -> int:
    """Hunt for the named faults, or for all; return 1 if a fault is not caught, or if a law breaks without a fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutations")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the faults to try (all)")
    parser.add_argument("--seeds", type=int, default=2_000, help="the greatest number of worlds for each fault (2000)")
    parser.add_argument(
        "--seconds", type=float, default=300, help="the most seconds of processor time for each fault (300)"
    )
    parser.add_argument("--ways", action="store_true", help="print the way to each law that broke in a scope")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in FAULTS]
    if unknown:
        parser.error(f"no fault is called {unknown[0]!r}; there is {', '.join(FAULTS)}")
    hunter, began = Hunter(chosen.seconds, chosen.seeds), time.process_time()
    names = chosen.names or list(FAULTS)
    catches = []
    print("| rule taken away | caught by | where | seconds | law |\n| --- | --- | --- | --- | --- |", flush=True)
    for name in names:
        catch = hunter.hunt(name)
        catches.append(catch)
        law = catch.law or "**not caught**"
        print(f"| {name} | {catch.by} | {catch.where} | {catch.seconds:.1f} | {law} |", flush=True)
        for line in catch.way if chosen.ways else ():
            print("   ", line)
    missed = sum(not catch.law for catch in catches)
    unsound = [catch.unsound for catch in catches if catch.unsound]
    print(f"\n{len(names)} faults, {missed} not caught, {time.process_time() - began:.0f} s of a processor")
    for story in unsound:
        print(f"breaks a law without any fault: {story}")
    return 1 if missed or unsound else 0


if __name__ == "__main__":
    sys.exit(main())
