"""Makes a failing world smaller while the same law breaks: first by simpler options, then by leaving out single events.

Simpler options make another world, so each is tried with a few seeds. Then single events (a client's command, a fault,
a needless recovery) are left out of one world. Each event has its own random generator, so the others stay much the
same.
"""

from collections.abc import Callable, Iterator

from tools.sim.options import Options
from tools.sim.world import LawBrokenError, World

Run = Callable[[Options], tuple[LawBrokenError | None, World]]

SEEDS = 4  # seeds to try for each simpler world
MANY = 40  # with more events than this, simpler options are tried first


class Shrinker:
    """A search for a smaller world, with a limited number of tries.

    Args:
        options: the options of a world that breaks a law.
        runs: the greatest number of tries.

    Attributes:
        options: the options of the smallest world so far.
        happened: the number of its commands, faults and needless recoveries.
    """

    def __init__(self, run: Run, options: Options, runs: int) -> None:
        self._run, self._left = run, runs
        broken, world = run(options)
        assert broken is not None, "a world that breaks no law cannot be made smaller"
        self.law = broken.law
        self.options, self._names, self._ended = options, list(world.happened), world.now

    @property
    def happened(self) -> int:
        """The number of commands, faults and needless recoveries in the smallest world so far."""
        return len(self._names)

    def shrink(self) -> Options:
        """Return the options of the smallest world found."""
        self._shorten()
        if self.happened > MANY:
            while self._left > 0 and self._simplify(SEEDS):
                pass
        self._leave_out()
        while self._left > 0 and self._simplify(1):
            pass
        self._leave_out()
        return self.options

    def _breaks(self, options: Options) -> bool:
        """Try a world; keep it, and return True, if the same law breaks and it has no more events than the smallest."""
        self._left -= 1
        broken, world = self._run(options)
        if broken is None or broken.law != self.law or len(world.happened) > len(self._names):
            return False
        self.options, self._names, self._ended = options, list(world.happened), world.now
        return True

    def _shorten(self) -> None:
        """If the law was broken before the faults were healed, end the world shortly after that."""
        load_s = round(self._ended + 0.001, 3)
        if load_s < self.options.load_s:
            self._breaks(self.options.with_(load_s=load_s, end_s=load_s + 0.5))

    def _simplify(self, seeds: int) -> bool:
        for candidate in smaller(self.options):
            for turn in range(seeds):
                if self._left <= 0:
                    return False
                if self._breaks(candidate.with_(seed=candidate.seed + turn)):
                    self._shorten()
                    return True
        return False

    def _leave_out(self) -> None:
        """Try to leave out halves, quarters, … of all events, and finally each single event."""
        size = max(1, len(self._names) // 2)
        while self._left > 0:
            start, found = 0, False
            while start < len(self._names) and self._left > 0:
                rest = (*self._names[:start], *self._names[start + size :])
                if rest and self._breaks(self.options.with_(only=rest)):
                    found = True
                else:
                    start += size
            if size == 1 and not found:
                return
            size = max(1, size // 2)


def smaller(options: Options) -> Iterator[Options]:
    """Yield the options of simpler worlds, the greatest simplification first."""
    if options.load_s > 0.2:
        yield options.with_(load_s=round(options.load_s / 2, 3))
        yield options.with_(load_s=round(options.load_s * 0.8, 3))
    if options.clients > 1:
        yield options.with_(clients=options.clients // 2)
        yield options.with_(clients=options.clients - 1)
    for kind in dict.fromkeys(options.faults):
        yield options.with_(faults=tuple(other for other in options.faults if other != kind))
    if options.suspect_every_s:
        yield options.with_(suspect_every_s=0.0)
    plain = Options(options.seed, readers=0)
    for name in (
        *(
            "alter",
            "changes_every_s",
            "talks",
            "snapshots",
            "readers",
            "wait_ms",
            "doubles",
            "gather_ms",
            "window_entries",
            "learners",
            "dead",
            "power_cut",
            "lose",
        ),
        *("lose", "duplicate", "ordered", "skew_ms", "execute_ms", "hot", "wander", "fetch_bytes", "follows_wall"),
    ):
        if getattr(options, name) != getattr(plain, name):
            yield options.with_(**{name: getattr(plain, name)})
    if options.voters > 3 and options.dead <= (options.voters - 3) // 2:
        yield options.with_(voters=options.voters - 2)


def shrink(options: Options, run: Run, runs: int) -> Options:
    """Return the options of the smallest world found in at most ``runs`` tries."""
    return Shrinker(run, options, runs).shrink()
