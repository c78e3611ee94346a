"""Makes a failing world smaller while the same law breaks, by leaving out single events.

An event is a client's command, a fault or a needless recovery. Each event has its own random generator, so leaving one
out hardly changes the others.
"""

from collections.abc import Callable

from tools.sim.options import Options
from tools.sim.world import LawBrokenError, World

Run = Callable[[Options], tuple[LawBrokenError | None, World]]


class Shrinker:
    """A search for a smaller world, with a limited number of tries.

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
        """Return the options of the smallest world found: without halves, quarters, … and finally single events."""
        self._shorten()
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
                break
            size = max(1, size // 2)
        return self.options

    def _shorten(self) -> None:
        """End the world shortly after the law was broken, if the faults were not healed yet."""
        load_s = round(self._ended + 0.001, 3)
        if load_s < self.options.load_s:
            self._breaks(self.options.with_(load_s=load_s, end_s=load_s + 0.5))

    def _breaks(self, options: Options) -> bool:
        """Try a world; keep it, and return True, if the same law breaks and it has no more events than the smallest."""
        self._left -= 1
        broken, world = self._run(options)
        if broken is None or broken.law != self.law or len(world.happened) > len(self._names):
            return False
        self.options, self._names, self._ended = options, list(world.happened), world.now
        return True
