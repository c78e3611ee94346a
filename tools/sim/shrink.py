"""Makes a failing world smaller, as long as the same law breaks: a long story by simpler options first, then what
happened, one by one.

Simpler options make another story, so each is tried with a few seeds. Single happenings (a client's command, a fault, a
needless recovery) are then left out of the story of one seed: each draws its own luck, so that the rest stays much as
it was.
"""

from collections.abc import Callable, Iterator

from tools.sim.options import Options
from tools.sim.world import LawBrokenError, World

Run = Callable[[Options], tuple[LawBrokenError | None, World]]

SEEDS = 4  # tried for each simpler world
MANY = 40  # happenings of which most are best got rid of at once, by simpler options


class Shrinker:
    """Looks for a smaller world, with at most so many tries.

    Args:
        run: runs a world.
        options: of one that breaks a law.
        runs: how many tries.

    Attributes:
        options: of the smallest world so far.
        happened: how many commands, faults and needless recoveries there were in it.
    """

    def __init__(self, run: Run, options: Options, runs: int) -> None:
        self._run, self._left = run, runs
        broken, world = run(options)
        assert broken is not None, "a world that breaks no law cannot be made smaller"
        self.law = broken.law
        self.options, self._names, self._ended = options, list(world.happened), world.now

    @property
    def happened(self) -> int:
        """How many commands, faults and needless recoveries there are in the smallest world."""
        return len(self._names)

    def shrink(self) -> Options:
        """Return the smallest world found."""
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
        """Try a world; keep it if the same law breaks, and no more happens in it than in the smallest so far."""
        self._left -= 1
        broken, world = self._run(options)
        if broken is None or broken.law != self.law or len(world.happened) > len(self._names):
            return False
        self.options, self._names, self._ended = options, list(world.happened), world.now
        return True

    def _shorten(self) -> None:
        """If the law was broken before the faults were healed, tell the story no further than a little after that."""
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
        """Leave out halves, quarters, … of all happenings, and finally each by itself."""
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
    """Yield worlds that are a little simpler than this one, the boldest first."""
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
    """Return the smallest world found, with at most ``runs`` worlds tried."""
    return Shrinker(run, options, runs).shrink()
