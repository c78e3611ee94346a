"""Makes a failing world smaller: fewer clients, faults and seconds, as long as the same law breaks."""

from collections.abc import Callable, Iterator

from tools.sim.options import Options

Breaks = Callable[[Options], str]  # the law that breaks, or nothing


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
    plain = Options(options.seed)
    for name in ("learners", "dead", "power_cut", "lose", "duplicate", "ordered", "skew_ms", "execute_ms", "hot"):
        if getattr(options, name) != getattr(plain, name):
            yield options.with_(**{name: getattr(plain, name)})
    if options.voters > 3 and options.dead <= (options.voters - 3) // 2:
        yield options.with_(voters=options.voters - 2)


def shrink(options: Options, breaks: Breaks, runs: int) -> Options:
    """Return the smallest world found, with at most ``runs`` worlds tried."""
    law = breaks(options)
    assert law, "a world that breaks no law cannot be made smaller"
    tried = 0
    found = True
    while found and tried < runs:
        found = False
        for candidate in smaller(options):
            tried += 1
            if breaks(candidate) == law:
                options, found = candidate, True
                break
            if tried >= runs:
                break
    return options
