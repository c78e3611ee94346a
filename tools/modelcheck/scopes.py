"""The scopes: how many nodes, which requests, and how often spontaneous events happen."""

from dataclasses import dataclass, fields, replace

from bedrockish.api.requests import Request, Statement
from bedrockish.core.state.settings import Settings

NAMES = "ABCDEFG"
STILL = Settings(clock_block_ms=0, fetch_after_ms=1, ask_rest_ms=0)  # no ask_rest_ms: each BEGIN goes to all voters
EARLY = replace(STILL, clock_block_ms=4)  # the ceiling is durable before a BEGIN needs it
AHEAD = replace(STILL, inline_bytes=300, piece_bytes=400)  # a large body is sent before the BEGIN, in a piece or two
TIMED = replace(STILL, closing_lag_ms=0)  # a heartbeat closes time up to now


@dataclass(frozen=True)
class Limits:
    """The greatest numbers of spontaneous events in one run, for all nodes together."""

    suspicions: int = 0  # recoveries begun, or begun again
    rollbacks: int = 0  # transactions given up by their leaders without need
    retries: int = 0  # executions after the first of a command
    restarts: int = 0  # crashes after which the node starts again at once
    deaths: int = 0  # crashes for good
    resets: int = 0  # links that break, lose their messages, and open again
    heartbeats: int = 0  # reports of applied, closed and cut


LIMITS = tuple(field.name for field in fields(Limits))


@dataclass(frozen=True)
class Scope:
    """A small cluster to explore: its nodes, their requests, and how often each fault may happen."""

    about: str  # a short description
    voters: int  # the number of voters
    requests: tuple[tuple[str, ...], ...]  # (node, command, key, ...): each request adds one to its keys at its node
    limits: Limits  # the greatest numbers of spontaneous events
    # For some limits, the nodes at which their events may happen; for other limits all nodes.
    where: tuple[tuple[str, str], ...] = ()
    which: tuple[str, ...] = ()  # the commands whose transactions may be suspected or given up; empty for all
    # Whether writes are durable at once; else separate events make them durable. docs/model-check.md explains why both
    # find the same faults.
    eager: bool = True
    together: str = ""  # nodes at which all requests come at once
    lazy: str = ""  # nodes whose writes become durable by separate events, even if ``eager`` is set
    ordered: bool = True  # whether links keep the order of messages
    settings: Settings = STILL  # the settings of all nodes
    dead: str = ""  # nodes that have sent the BEGINs of their requests and are dead at the start
    cut: tuple[str, ...] = ()  # pairs of nodes without a link, until the ending
    prefix: tuple[str, ...] = ()  # the script of the first events, after which the search begins
    # (sender, receiver) of links on which no message arrives after the prefix and before the ending.
    held: tuple[str, ...] = ()
    endings: int = 20  # the number of states, evenly spread over all, whose fair endings are run
    # ``depth`` and ``states``: limits of the search, for a scope that cannot be exhausted.
    depth: int = 10_000
    states: int = 100_000_000

    @property
    def names(self) -> str:
        return NAMES[: self.voters]

    def script(self, name: str) -> tuple[Request, ...]:
        """Return the requests of clients at a node, in order."""
        return tuple(
            Request(command, tuple(Statement("add", [key, 1]) for key in keys), timeout_s=1e6)
            for node, command, *keys in self.requests
            if node == name
        )

    def allows(self, limit: str, name: str) -> bool:
        """Return whether the events of a limit may happen at a node."""
        return getattr(self.limits, limit) > 0 and name in dict(self.where).get(limit, self.names)

    def is_cut(self, one: str, other: str) -> bool:
        """Return whether two nodes have no link."""
        return one + other in self.cut or other + one in self.cut

    def with_(self, **changes: object) -> "Scope":
        """Return the scope with some of its own fields, or those of its limits, changed."""
        limits = {name: changes.pop(name) for name in list(changes) if name in LIMITS}
        return replace(self, limits=replace(self.limits, **limits), **changes)  # type: ignore[arg-type]


MEET = (("A", "P", "x"), ("B", "Q", "x"))
PASS = (("A", "P", "x"), ("B", "Q", "y"))
SAME = (("A", "P", "x"), ("B", "P", "y"))  # one command at two nodes, with another effect at each
CHAIN = (("A", "P", "x"), ("B", "Q", "x", "y"), ("C", "R", "y"))
ALONE = (("A", "P", "x"),)
LARGE = (("A", "P", "x" * 300),)


def at(**nodes: str) -> tuple[tuple[str, str], ...]:
    """Return the nodes at which the events of some limits may happen, for ``Scope.where``."""
    return tuple(nodes.items())


SCOPES: dict[str, Scope] = {
    "meet-3": Scope("two in conflict; losers run again", 3, MEET, Limits(retries=1)),
    "pass-3": Scope("two without a conflict; A restarts", 3, PASS, Limits(restarts=1), where=at(restarts="A")),
    "restart-3": Scope("two in conflict; A restarts", 3, MEET, Limits(restarts=1), where=at(restarts="A")),
    "restarts-3": Scope("two in conflict; any node restarts", 3, MEET, Limits(restarts=1)),
    "recover-3": Scope("two in conflict; any node recovers one of them", 3, MEET, Limits(suspicions=1)),
    "recover-one-3": Scope(
        "two in conflict; C recovers one of them", 3, MEET, Limits(suspicions=1), where=at(suspicions="C"), which=("P",)
    ),
    "rollback-3": Scope(
        "two in conflict; one given up, and run again", 3, MEET, Limits(rollbacks=1, retries=1), endings=1_000
    ),
    "again-3": Scope(
        "one, given up and run again; a link breaks and comes back, the leader dies",
        3,
        ALONE,
        Limits(rollbacks=1, retries=1, resets=1, deaths=1),
        where=at(rollbacks="A", deaths="A"),
        endings=20_000,
    ),
    "ahead-3": Scope(
        "one whose body travels ahead in pieces; a link breaks and comes back",
        3,
        LARGE,
        Limits(resets=1),
        settings=AHEAD,
    ),
    "ahead-recover-3": Scope(
        "one whose body travels ahead in pieces; C recovers it, A restarts",
        3,
        LARGE,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="C", restarts="A"),
        settings=AHEAD,
    ),
    "recover-rollback-3": Scope(
        "two in conflict; any node recovers, a leader gives up", 3, MEET, Limits(suspicions=1, rollbacks=1)
    ),
    "death-3": Scope(
        "two in conflict; any node dies, any node recovers", 3, MEET, Limits(suspicions=1, deaths=1), endings=100
    ),
    "restart-recover-3": Scope(
        "two in conflict; a leader or C restarts, C recovers",
        3,
        MEET,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="C", restarts="AC"),
        which=("P",),
    ),
    "twice-recovered-3": Scope(
        "one; B and C recover it, two rounds", 3, ALONE, Limits(suspicions=2, restarts=1), where=at(restarts="B")
    ),
    "retry-elsewhere-3": Scope(
        "one command at two leaders; one dies, C recovers",
        3,
        SAME,
        Limits(suspicions=1, deaths=1, retries=1),
        where=at(suspicions="BC", deaths="A"),
        endings=100,
    ),
    "sync-3": Scope(
        "one; each write is durable by an event of its own, A restarts, B recovers",
        3,
        ALONE,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="B", restarts="A"),
        eager=False,
    ),
    "forgets-3": Scope(
        "two in conflict; A restarts without the writes that are not durable, C recovers",
        3,
        MEET,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="C", restarts="A"),
        lazy="A",
        settings=EARLY,
    ),
    "forgets-both-3": Scope(
        "two of one leader, which restarts without the writes that are not durable",
        3,
        (("A", "P", "x"), ("A", "Q", "x")),
        Limits(restarts=1),
        where=at(restarts="A"),
        lazy="A",
        settings=EARLY,
    ),
    "same-clock-3": Scope(
        "two of one leader, whose clock has no durable ceiling; it restarts without the writes that are not durable",
        3,
        (("A", "P", "x"), ("A", "Q", "y")),
        Limits(restarts=1),
        where=at(restarts="A"),
        lazy="A",
    ),
    "reset-3": Scope("two in conflict; a link breaks and comes back", 3, MEET, Limits(resets=1)),
    "line-3": Scope(
        "two in conflict on a line A-B-C; any node recovers, and again",
        3,
        (("A", "P", "x"), ("C", "Q", "x")),
        Limits(suspicions=2, rollbacks=1),
        cut=("AC",),
    ),
    "gap-3": Scope(
        "two of one leader; a link breaks and comes back, the leader dies",
        3,
        (("A", "P", "x"), ("A", "Q", "y")),
        Limits(resets=1, deaths=1),
        where=at(deaths="A"),
        endings=300,
    ),
    "disorder-3": Scope(
        "two in conflict on links that keep no order; P is given up",
        3,
        MEET,
        Limits(rollbacks=1),
        where=at(rollbacks="A"),
        ordered=False,
        endings=50,
    ),
    "chain-3": Scope("P conflicts with Q, Q with R, on a line A-B-C", 3, CHAIN, Limits(), cut=("AC",)),
    "time-3": Scope(
        "one; heartbeats close and cut time, B or C recovers",
        3,
        ALONE,
        Limits(suspicions=1, heartbeats=3),
        where=at(suspicions="B"),
        settings=TIMED,
    ),
    "together-3": Scope(
        "two that share a transaction at A conflict with one of C; one of the groups may be given up",
        3,
        (("A", "P", "x"), ("A", "Q", "y"), ("C", "R", "y")),
        Limits(rollbacks=1),
        together="A",
        endings=100,
    ),
    "together-restart-3": Scope(
        "two that share a transaction; A may restart, B recovers",
        3,
        (("A", "P", "x"), ("A", "Q", "y")),
        Limits(suspicions=1, restarts=1),
        where=at(restarts="A", suspicions="B"),
        together="A",
        endings=100,
    ),
    "meet-4": Scope("two in conflict", 4, MEET, Limits()),
    "recover-4": Scope(
        "one; B recovers it while A may die",
        4,
        ALONE,
        Limits(suspicions=1, deaths=1),
        where=at(suspicions="B", deaths="A"),
    ),
    "orphans-4": Scope(
        "one of two conflicting transactions is an orphan", 4, MEET, Limits(suspicions=1), dead="A", endings=100
    ),
    "orphans-5": Scope(
        "two in conflict, both orphans; recoveries", 5, MEET, Limits(suspicions=2), dead="AB", endings=300
    ),
    "orphans-7": Scope("two in conflict, both orphans, C is dead", 7, MEET, Limits(), dead="ABC", endings=1_000),
    "race-5": Scope(
        "two in conflict; C recovers P while B gives Q up",
        5,
        MEET,
        Limits(suspicions=1, rollbacks=1),
        where=at(suspicions="C", rollbacks="B"),
        which=("P", "Q"),
        cut=("AD", "AE", "BC"),
    ),
    "dying-leaders-5": Scope(
        "two in conflict; both leaders may die, C, D or E recover",
        5,
        MEET,
        Limits(suspicions=2, deaths=2),
        where=at(suspicions="CDE", deaths="AB"),
    ),
}
