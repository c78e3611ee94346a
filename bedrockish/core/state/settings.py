"""The timings and bounds that an operator may change. All durations are milliseconds."""

from dataclasses import dataclass

SCHEMA_GRACE_MS = 20  # in which transactions arrive that were begun before a schema change was due


@dataclass(frozen=True, slots=True)
class Settings:
    """Timings and bounds of one node.

    Attributes:
        heartbeat_ms: how often a node tells the others its applied vector and its closed time.
        suspicion_ms: how long a leader may be silent before others finish its transactions.
        closing_lag_ms: how far behind its clock a node closes time at most; slower transactions are rejected as
            TOO LATE.
        closing_lag_ms_min: how far behind its clock a node closes time at least; between the two bounds, the lag
            follows the lateness of arriving transactions.
        conflict_window_ms: how old a snapshot may be at BEGIN, and how long access sets are kept (twice that at most).
        clock_offset_ms: a BEGIN whose clock is further than this ahead of our wall clock is refused.
        clock_leap_ms: how far most voters' wall clocks may leap ahead at once; the cluster's clock follows no greater
            leap while the node runs.
        clock_block_ms: how far ahead the clock's ceiling is made durable at a time.
        fetch_after_ms: how long a gap in a timeline may last before it is fetched.
        fetch_bytes: how many bytes of a timeline one FETCH asks for.
        inline_bytes: a transaction or a message that is larger than this travels in pieces.
        piece_bytes: size of one piece.
        ask_rest_ms: how long a leader waits at least for a quorum before it asks the other voters; 0: it asks all
            voters at once.
        retry_ms_min: first pause before a rejected command is run again; doubled each time, with jitter.
        retry_ms_max: longest such pause.
        barrier_ms: how long new transactions wait after a rejected membership change, so that its next attempt
            succeeds.
        schema_delay_ms: how long after its decision a schema change comes into force, where there is more than one
            voter; twice as long at each further attempt.
        reserve_ms: the longest reservation of a statement that has lost to others again and again, see
            ``coordinator.reservations``; with 1, reservations have practically no effect.
    """

    heartbeat_ms: int = 100
    suspicion_ms: int = 1_000
    closing_lag_ms: int = 500
    closing_lag_ms_min: int = 100
    conflict_window_ms: int = 60_000
    clock_offset_ms: int = 5_000
    clock_leap_ms: int = 600_000
    clock_block_ms: int = 1_000
    fetch_after_ms: int = 50
    fetch_bytes: int = 4_000_000
    inline_bytes: int = 256 << 10
    piece_bytes: int = 64 << 10
    ask_rest_ms: int = 10
    retry_ms_min: int = 2
    retry_ms_max: int = 200
    barrier_ms: int = 300
    schema_delay_ms: int = 50
    reserve_ms: int = 3_000


FIXED = frozenset(
    {
        "clock_block_ms",
        "fetch_after_ms",
        "fetch_bytes",
        "inline_bytes",
        "piece_bytes",
        "ask_rest_ms",
        "retry_ms_min",
        "retry_ms_max",
        "barrier_ms",
    }
)
"""Fields that tests and the simulator vary, and that are not keys of the configuration."""

BELOW = (  # in each pair, the first must be below the second
    ("heartbeat_ms", "suspicion_ms"),
    ("closing_lag_ms_min", "closing_lag_ms"),
    ("closing_lag_ms", "conflict_window_ms"),
)


def approvals_needed(voters: int) -> int:
    """Return the approval quorum q(n) = max(n//2+1, (n+f)//2): a plain majority up to 6 voters, and more from 7 on.

    With a plain majority, the survivors may find two orphaned, conflicting transactions of which each could have been
    committed; neither could ever be decided (``docs/protocol.md``, the trace at seven voters).
    """
    failures = (voters - 1) // 2
    return max(majority(voters), (voters + failures) // 2)


def may_count_out(voters: int) -> bool:
    """Return whether a recovery may have to count out a voter that it cannot reach (J6).

    If the leader of the transaction answers, it decides the matter. Up to four voters, a majority of answers without
    the leader has the answers of all other voters, so no voter is left to be counted out.
    """
    return majority(voters) <= voters - 2


def majority(voters: int) -> int:
    """Return the smallest number of voters such that any two sets of that size share a voter."""
    return voters // 2 + 1
