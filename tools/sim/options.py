"""The options that a seed draws: the size of the cluster, its timings, its load and its faults.

All options are drawn here and printed, so that a shrunk failure can be written as a seed and a few overrides.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any
from unittest.mock import patch

from bedrockish.core.state import commit_window, packed_commits
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.levels import LEVEL

FAULTS = (
    "crash",
    "kill",
    "crash_all",
    "crash_some",
    "partition",
    "one_way",
    "reset",
    "pause",
    "pause_some",
    "slow_disk",
    "slow_link",
    "jump",
    "leap",
    "wipe",
    "restore",
)
OLDER = 5  # seeds with this remainder modulo 7 have a cluster that begins one release level below the program's
COMINGS = 3  # seeds with this remainder modulo 11 have a cluster in which nodes join as voters, and leave, all the time
WINDOW_CONSTANTS = ((packed_commits, "SEGMENT"), (commit_window, "LATEST"), (commit_window, "FEW"))
TALKING = 8  # seeds with this remainder modulo 11 have many interactive transactions that commit at one moment
JOURNAL = 3  # seeds with this remainder modulo 5 have clients that read the journal
STEADY = 6  # seeds with this remainder modulo 13 have a cluster without faults for 12 s
GATHER_MS = (0.0, 0.0, 2.0, 20.0)
VOTERS = (1, 3, 3, 3, 4, 5, 5, 6, 7, 7)

# Commands over many rows conflict all the time, so that they make reservations, and nodes crash, pause or jump in time.
CROWDED: dict[str, Any] = {
    **{"voters": 3, "learners": 0, "dead": 0, "clients": 16, "wander": 1.0, "think_ms": 2.0, "keys": 20, "hot": 0.0},
    **{"execute_ms": 90.0, "wait_ms": 0.0, "timeout_s": 5.0, "reserve_ms": 300, "load_s": 4.0, "skew_ms": 2_000},
    **{"faults": ("pause", "partition", "kill", "leap"), "fault_every_s": 1.0, "suspect_every_s": 0.0, "alter": 0.0},
}
# Many clients of each node commit interactive transactions that read the same range and change different rows.
CONVERSING: dict[str, Any] = {
    **{"voters": 3, "learners": 0, "dead": 0, "clients": 16, "wander": 0.0, "think_ms": 2.0, "keys": 40, "hot": 0.0},
    **{"talks": 0.9, "looks": 0.9, "gather_ms": 20.0, "load_s": 8.0, "fault_every_s": 2.0, "suspect_every_s": 0.2},
    **{"delay_ms": 1.0, "sync_ms": 1.0, "lose": 0.0, "duplicate": 0.0, "execute_ms": 0.0, "alter": 0.0},
    **{"timeout_s": 5.0, "stamps": 0.0, "snapshots": 0.0},
}


@dataclass(frozen=True)
class Options:
    """The options of one world. Times without a unit in their name are seconds."""

    seed: int  # the seed of all random generators
    # ``voters`` and ``learners``: the numbers of nodes.
    voters: int = 3
    learners: int = 0
    clients: int = 4  # the number of clients, each of which sends one command at a time
    load_s: float = 8.0  # the time in which clients begin new commands, and faults happen
    think_ms: float = 60.0  # mean pause of a client between commands
    wander: float = 0.2  # the chance that a client asks another node than its own
    keys: int = 8  # the number of accounts; fewer keys mean more conflicts
    hot: float = 0.2  # the chance that a command uses one of two hot keys
    delay_ms: float = 2.0  # mean one-way delay of a message
    sync_ms: float = 1.0  # mean time of a disk's sync
    # Mean time that an execution waits for a background worker and its snapshot; 0: executions do not wait.
    wait_ms: float = 0.0
    doubles: float = 0.0  # the chance that a client sends a command to its node twice with the same id
    gather_ms: float = 0.0  # mean time for which a node gathers writes to execute them together; 0: it does not gather
    execute_ms: float = 0.0  # mean time of an execution; 0: it runs between two events, as in the real driver
    # ``duplicate`` and ``lose``: the chance that a message is duplicated, or silently lost.
    duplicate: float = 0.0
    lose: float = 0.0
    ordered: bool = True  # whether links keep the order of messages, as TCP does
    faults: tuple[str, ...] = ()  # the kinds of faults
    fault_every_s: float = 1.0  # mean pause between two faults
    suspect_every_s: float = 0.0  # mean pause between two needless recoveries or give-ups; 0 for none
    skew_ms: int = 0  # the difference of wall clocks at the start
    follows_wall: bool = True  # False for a purely logical cluster clock
    timeout_s: float = 5.0  # the timeout of a command
    dead: int = 0  # the number of voters that stay dead until all other nodes have come to rest
    power_cut: bool = False  # whether all nodes stop at once at the end, and start again
    heartbeat_ms: int = 100
    suspicion_ms: int = 1_000
    closing_lag_ms: int = 500
    conflict_window_ms: int = 60_000
    # How many commits of the conflict window are packed together, and how many commits of each timeline are known by
    # their ticks; 0: the program's constants.
    segment: int = 0
    window_entries: int = 50_000  # the number of settled commits that a node reads back when it starts
    fetch_bytes: int = 4_000_000
    changes_every_s: float = 0.0  # mean pause between two membership changes; 0 for none
    comings: float = 0.0  # the chance that a change adds a node as a voter, or removes a node
    # The chance that a change adds a node with an empty file under the name of a removed voter.
    names_again: float = 0.0
    snapshots: float = 0.0  # the chance that a command has isolation ``snapshot``
    # The chance that a writing statement stores its transaction's clock, apart from statements that always do. Half of
    # this is the chance that a command only asks for its clock.
    stamps: float = 0.0
    talks: float = 0.0  # the chance that a command is an interactive transaction
    # The chance that a writing command only reads a range without rows, the same one for all, and writes a row of its
    # client's: such transactions are merged if they commit at one moment.
    looks: float = 0.0
    readers: int = 1  # the number of programs that follow the change feed
    alter: float = 0.0  # the chance that a command changes the schema
    schema_delay_ms: int = 50  # the time from the commit of a schema change until it comes into force
    # The longest time that other commands hold back for a command over many rows that repeatedly conflicts.
    reserve_ms: int = 3_000
    # Transactions and messages of more than twice this size are sent in pieces of this size; 0: hardly any are.
    piece_bytes: int = 0
    large: float = 0.0  # the chance that a writing statement writes a long text
    journal: float = 0.0  # the chance that a reading command reads the journal, alone or with a row
    sweeps: float = 0.0  # the chance that a writing statement changes all rows of a range, and their index as a whole
    compare_ms: float = 0.0  # mean time in which a voter compares the rows of a transaction; 0: between two events
    unreadable: float = 0.0  # the chance that a damaged row cannot be read at all
    flip_every_s: float = 0.0  # mean pause between two damaged rows; 0 for none
    # Mean pause between two comparisons of a node's tables with its peers', in worlds with damaged rows.
    scrub_s: float = 3.0
    # The names of commands (``c1-5``), faults (``f3``) and needless recoveries (``s7``) that happen; empty for all.
    only: tuple[str, ...] = ()
    end_s: float = 0.0  # the time at which the world ends in any state; 0: it ends at rest
    level: int = LEVEL  # the release level at which the cluster begins; a level below the program's is raised later
    ask_rest_ms: int = 0

    @property
    def settings(self) -> Settings:
        """The settings of every node."""
        return Settings(
            heartbeat_ms=self.heartbeat_ms,
            suspicion_ms=self.suspicion_ms,
            closing_lag_ms=self.closing_lag_ms,
            conflict_window_ms=self.conflict_window_ms,
            fetch_bytes=self.fetch_bytes,
            schema_delay_ms=self.schema_delay_ms,
            reserve_ms=self.reserve_ms,
            ask_rest_ms=self.ask_rest_ms,
            **({"inline_bytes": 2 * self.piece_bytes, "piece_bytes": self.piece_bytes} if self.piece_bytes else {}),
        )

    @property
    def is_calm(self) -> bool:
        """Return whether the world has no faults and no membership changes."""
        every = (self.fault_every_s if self.faults else 0.0, self.suspect_every_s, self.changes_every_s)
        return not any((*every, self.flip_every_s, self.lose, self.duplicate)) and self.ordered

    @contextmanager
    def constants(self) -> Iterator[None]:
        """Set the constants of the conflict window to this world's, inside the block."""
        with ExitStack() as stack:
            if self.segment:
                for module, name in WINDOW_CONSTANTS:
                    stack.enter_context(patch.object(module, name, self.segment))
            yield

    @property
    def pace_at_rest(self) -> float:
        """The factor on the delays of network and disks after the end of all faults.

        A closing lag that is shorter than the delay of a BEGIN is a misconfiguration: too few voters get the BEGIN in
        time. Such worlds test late BEGINs, but need faster links to finish their last transactions.
        """
        # A BEGIN in pieces needs further messages, with which the voter fetches the pieces.
        ways = 8 if self.piece_bytes else 2
        return min(1.0, self.closing_lag_ms / (ways * (self.delay_ms + self.sync_ms)))

    def with_(self, **changes: object) -> "Options":
        return replace(self, **changes)  # type: ignore[arg-type]  # names and types are the caller's

    def __str__(self) -> str:
        defaults = Options(self.seed)
        shown = (field.name for field in fields(self) if field.name != "seed")
        return " ".join(
            f"{name}={getattr(self, name)!r}".replace("'", "").replace(" ", "")
            for name in shown
            if getattr(self, name) != getattr(defaults, name)
        )


def draw_options(seed: int) -> Options:
    """Return the options of a seed: a hard world for even seeds, any kind of world for odd ones.

    The clusters of some seeds begin at an older release level.
    """
    options = draw_wide_options(seed) if seed % 2 else draw_hard_options(seed)
    if seed % 11 == COMINGS:
        options = options.with_(comings=0.8, changes_every_s=0.1, load_s=max(options.load_s, 3.0))
    options = options.with_(gather_ms=Random(f"gather {seed}").choice(GATHER_MS))
    if seed % 11 == TALKING:
        options = options.with_(**CONVERSING)
    options = options.with_(window_entries=Random(f"window {seed}").choice((0, 3, 50_000)))
    options = options.with_(segment=Random(f"segment {seed}").choice((0, 2, 5)))
    luck = Random(f"large {seed}")
    large = luck.choice((0.0, 0.0, 0.1, 0.3))
    if large:
        options = options.with_(large=large, piece_bytes=options.piece_bytes or luck.choice((200, 600)))
    if seed % 13 == STEADY:
        calm = {"faults": (), "suspect_every_s": 0.0, "changes_every_s": 0.0, "flip_every_s": 0.0, "comings": 0.0}
        calm |= {"lose": 0.0, "duplicate": 0.0, "ordered": True, "think_ms": max(60.0, options.think_ms)}
        options = options.with_(load_s=12.0, **calm)
    options = options.with_(sweeps=Random(f"sweeps {seed}").choice((0.0, 0.0, 0.05, 0.2)))
    options = options.with_(compare_ms=Random(f"compare {seed}").choice((0.0, 0.0, 5.0, 100.0)))
    if options.flip_every_s:
        options = options.with_(unreadable=Random(f"unreadable {seed}").choice((0.0, 0.2)))
    if options.changes_every_s:
        options = options.with_(names_again=Random(f"names {seed}").choice((0.0, 0.3)))
    options = options.with_(journal=0.5 * (seed % 5 == JOURNAL))
    return options.with_(level=LEVEL - 1) if seed % 7 == OLDER else options


def draw_wide_options(seed: int) -> Options:
    """Return the options of a simulated world, drawn from wide ranges."""
    options, luck = _quorum_first(_wide_options(seed)), Random(f"damage {seed}")
    return _damage(options, luck, every_s=(0.1, 0.5, 2.0))


def _quorum_first(options: Options) -> Options:
    """Return the options, changed in every second world so that leaders ask a quorum first."""
    luck = Random(f"rest {options.seed}")
    return options if luck.random() < 0.5 else options.with_(ask_rest_ms=luck.choice((1, 10, 10, 30)))


def _damage(options: Options, luck: Random, every_s: tuple[float, ...]) -> Options:
    """Return the options, changed in every fourth world so that rows are damaged.

    Such a world has no schema changes, because their effect on damaged tables is not modelled.
    """
    if luck.random() < 0.75:
        return options
    return options.with_(flip_every_s=luck.choice(every_s), scrub_s=luck.choice((1.0, 5.0, 20.0)), alter=0.0)


def _wide_options(seed: int) -> Options:
    luck = Random(f"options {seed}")
    voters = luck.choice(VOTERS)
    calm = luck.random() < 0.1
    kinds = tuple(kind for kind in FAULTS if luck.random() < 0.5 and (kind != "leap" or luck.random() < 0.4))
    suspicion = luck.choice((200, 400, 1_000))
    delay_ms = luck.choice((0.2, 1.0, 5.0, 40.0))
    return Options(
        seed,
        voters=voters,
        learners=luck.choice((0, 0, 0, 1, 2)),
        clients=luck.choice((1, 2, 3, 4, 6, 10)),
        load_s=luck.choice((0.5, 1.0, 2.0, 4.0)),
        think_ms=luck.choice((5.0, 30.0, 100.0)),
        keys=luck.choice((3, 6, 12, 40)),
        hot=luck.choice((0.0, 0.1, 0.5, 0.9)),
        delay_ms=delay_ms,
        sync_ms=luck.choice((0.1, 1.0, 8.0)),
        wait_ms=luck.choice((0.0, 0.0, 2.0, 50.0)),
        doubles=luck.choice((0.0, 0.1, 0.5)),
        execute_ms=luck.choice((0.0, 0.0, 1.0, 20.0)),
        duplicate=0.0 if calm else luck.choice((0.0, 0.0, 0.01, 0.2)),
        lose=0.0 if calm else luck.choice((0.0, 0.0, 0.0, 0.01, 0.1)),
        ordered=calm or luck.random() < 0.7,
        faults=() if calm else kinds,
        fault_every_s=luck.choice((0.1, 0.3, 1.0, 3.0)),
        skew_ms=luck.choice((0, 5, 200, 2_000)),
        follows_wall=luck.random() < 0.9,
        timeout_s=luck.choice((0.5, 2.0, 5.0, 20.0)),
        dead=0 if luck.random() < 0.4 else luck.randint(0, (voters - 1) // 2),
        power_cut=luck.random() < 0.3,
        heartbeat_ms=luck.choice((30, 100, 100)),
        suspicion_ms=suspicion,
        closing_lag_ms=luck.choice((50, 500)),
        conflict_window_ms=luck.choice((1_500, 5_000, 60_000)),
        fetch_bytes=luck.choice((500, 20_000, 4_000_000)),
        changes_every_s=luck.choice((0.0, 0.0, 0.1, 0.5)),
        snapshots=luck.choice((0.0, 0.0, 0.3)),
        talks=luck.choice((0.0, 0.0, 0.2, 0.5)),
        wander=luck.choice((0.0, 0.2, 1.0)),
        readers=luck.choice((0, 1, 2)),
        alter=luck.choice((0.0, 0.0, 0.03, 0.2)),
        schema_delay_ms=luck.choice((0, 2, 50, 50)),
        piece_bytes=luck.choice((0, 0, 0, 40, 100)),
    )


def draw_hard_options(seed: int) -> Options:
    """Return the options of a small world with many conflicts, recoveries and restarts, which finds most faults."""
    options, luck = _quorum_first(_hard_options(seed)), Random(f"hard damage {seed}")
    return _damage(options, luck, every_s=(0.05, 0.2))


def _hard_options(seed: int) -> Options:
    luck = Random(f"hard options {seed}")
    voters = luck.choice((3, 3, 4, 5, 5, 7))
    kinds = ("crash", "crash", "kill", "partition", "one_way", "reset", "pause", "slow_disk", "slow_link")
    return Options(
        seed,
        voters=voters,
        clients=6,
        load_s=1.0,
        think_ms=2.0,
        keys=luck.choice((3, 6, 12)),
        hot=luck.choice((0.0, 0.5)),
        delay_ms=luck.choice((1.0, 5.0, 20.0)),
        sync_ms=luck.choice((0.5, 5.0, 20.0)),
        wait_ms=luck.choice((0.0, 0.0, 10.0)),
        doubles=luck.choice((0.0, 0.3)),
        execute_ms=luck.choice((0.0, 5.0)),
        duplicate=luck.choice((0.0, 0.1)),
        lose=luck.choice((0.0, 0.05, 0.2)),
        ordered=luck.random() < 0.5,
        faults=tuple(kind for kind in kinds if luck.random() < 0.6),
        fault_every_s=luck.choice((0.03, 0.1, 0.3)),
        suspect_every_s=luck.choice((0.0, 0.005, 0.02)),
        skew_ms=luck.choice((0, 50)),
        timeout_s=luck.choice((0.3, 2.0)),
        dead=luck.randint(0, (voters - 1) // 2),
        power_cut=luck.random() < 0.2,
        heartbeat_ms=luck.choice((20, 50)),
        suspicion_ms=luck.choice((20, 50, 200)),
        closing_lag_ms=luck.choice((20, 100)),
        conflict_window_ms=luck.choice((1_000, 60_000)),
        fetch_bytes=luck.choice((500, 4_000_000)),
        changes_every_s=luck.choice((0.0, 0.0, 0.0, 0.1)),
        snapshots=luck.choice((0.0, 0.0, 0.3)),
        talks=luck.choice((0.0, 0.0, 0.2)),
        wander=luck.choice((0.0, 0.2, 1.0)),
        readers=luck.choice((0, 0, 1)),
        alter=luck.choice((0.0, 0.0, 0.03, 0.2)),
        schema_delay_ms=luck.choice((0, 2, 20)),
        piece_bytes=luck.choice((0, 0, 0, 40, 100)),
    )
