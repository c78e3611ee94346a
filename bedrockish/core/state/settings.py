"""The timings and bounds that an operator may change. All durations are milliseconds."""

from dataclasses import dataclass

SCHEMA_GRACE_MS = 20  # how long after a schema change's activation time is closed up to it: BEGINs may be under way


@dataclass(frozen=True, slots=True)
class Settings:
    """Timings and bounds of one node."""

    heartbeat_ms: int = 100  # interval at which a node sends its applied vector and its closed time to the others
    suspicion_ms: int = 1_000  # silence of a leader after which others finish its transactions
    # Greatest lag of a node's closed time behind its clock; slower transactions are rejected as TOO LATE.
    closing_lag_ms: int = 500
    # Smallest lag of closed time; between the two bounds, the lag adapts to the delay of transactions.
    closing_lag_ms_min: int = 100
    # Greatest age of a snapshot at BEGIN; access sets are kept for up to twice that time.
    conflict_window_ms: int = 60_000
    clock_offset_ms: int = 5_000  # a BEGIN whose clock is further than this ahead of our wall clock is refused
    # Greatest leap of most voters' wall clocks that the cluster's clock follows while the node runs.
    clock_leap_ms: int = 600_000
    clock_block_ms: int = 1_000  # distance by which the durable ceiling is raised above the clock at a time
    fetch_after_ms: int = 50  # age of a gap in a timeline at which the missing entries are fetched
    fetch_bytes: int = 4_000_000  # size of the entries of a timeline that one FETCH requests
    inline_bytes: int = 256 << 10  # size above which a transaction or a message is sent in pieces
    piece_bytes: int = 64 << 10  # size of one piece
    # Shortest wait of a leader for a quorum before it asks the other voters; 0: it asks all at once.
    ask_rest_ms: int = 10
    # Time from the decision of a schema change to its activation, with more than one voter; doubled at each further
    # attempt.
    schema_delay_ms: int = 50
    # Longest reservation of a statement that has lost to others repeatedly, see ``coordinator.reservations``; with 1,
    # reservations have practically no effect.
    reserve_ms: int = 3_000


FIXED = frozenset({"clock_block_ms", "fetch_after_ms", "fetch_bytes", "inline_bytes", "piece_bytes", "ask_rest_ms"})
"""Fields that tests and the simulator vary, and that are not keys of the configuration."""

BELOW = (  # in each pair, the first must be below the second
    ("heartbeat_ms", "suspicion_ms"),
    ("closing_lag_ms_min", "closing_lag_ms"),
    ("closing_lag_ms", "conflict_window_ms"),
)


def approvals_needed(voters: int) -> int:
    """Return the approval quorum q(n) = max(n//2+1, (n+f)//2): a plain majority up to 6 voters, and more from 7 on.

    f is the number of voters that may fail. With a plain majority of seven, the survivors may find two conflicting
    transactions without a leader, each of which could have been committed; neither could ever be decided
    (``docs/protocol.md``, the trace at seven voters).
    """
    failures = (voters - 1) // 2
    return max(majority(voters), (voters + failures) // 2)


def may_count_out(voters: int) -> bool:
    """Return whether a recovery may have to count out a voter that it cannot reach (J6).

    To count a voter out is to conclude that it has not approved the transaction of the recovery. If the leader of the
    transaction answers, its answer decides. With up to four voters, a majority that does not include the leader
    includes all other voters, so none of these has to be counted out.
    """
    return majority(voters) <= voters - 2


def majority(voters: int) -> int:
    """Return the smallest number of voters such that any two sets of that size share a voter."""
    return voters // 2 + 1
