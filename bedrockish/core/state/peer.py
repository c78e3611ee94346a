"""What a node knows of another one."""

from dataclasses import dataclass, field

from bedrockish.common.levels import UNKNOWN
from bedrockish.core.protocol.health import Mode
from bedrockish_journal.model.vector import Vector


@dataclass(slots=True)
class Peer:
    """What this node knows of another.

    Attributes:
        up: whether messages to it can arrive.
        heard: seconds at which it was last heard of.
        applied: what it said to have applied.
        report: its latest (applied, closed, cut), not yet covered by what we have applied; or None.
        closed, cut: its latest report that we have covered.
        wall_ahead_ms: its wall clock less our monotonic one, when it last told; None if it never did.
        suspected: we have begun to finish its transactions without it.
        patience: how many times ``suspicion_ms`` it may be silent; doubled when it was suspected and is alive.
        ahead_ms: how far ahead of what most voters' clocks say its clock is, if that is further than we follow; else 0.
        level: the release level of its program; ``UNKNOWN`` if it has told none yet.
        removed: the last tick of each timeline that it said to have removed from its journal.
        mode: how much it said that it still does.
        config: the version of the membership that it said to have applied; 0 before it has told.
    """

    up: bool = False
    heard: float = 0.0
    applied: Vector = field(default_factory=dict)
    report: tuple[Vector, int, int] | None = None
    closed: int = 0
    cut: int = 0
    clock: int = 0
    wall_ahead_ms: int | None = None
    suspected: bool = False
    patience: float = 1.0
    ahead_ms: int = 0
    level: int = UNKNOWN
    removed: Vector = field(default_factory=dict)
    mode: Mode = Mode.SERVING
    config: int = 0
