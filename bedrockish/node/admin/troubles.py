"""The table of the troubles of a node or its cluster: the sign of each, and an operator's remedy.

``bedrockish status`` names the troubles first and exits with 1, ``/readyz`` fails for those that make a node useless,
and each trouble has a metric and an alert rule. All of these use this table, and docs/troubles.md and docs/alerts.yml
are printed from it. Pure: a trouble is found in the node's status, and the time is an argument.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bedrockish.core.protocol.health import UNPROVEN, Mode

Status = Mapping[str, Any]
# Returns the text of a trouble, with its facts, from a status; empty without the trouble.
Find = Callable[[Status], str]

BEHIND_MAX = 200  # most commits that a healthy node lacks: under load some are always under way
SILENT_MS_MAX = 3_000
IN_DOUBT_MS_MAX = 10_000
SAFE_LAG_MS_MAX = 10_000
SLOW_MS_MAX = 3_000  # how late a voter's closed time may arrive here
SKEW_MS_MAX = 1_000
SYNC_MS_MAX = 1_000  # how long the disk may take for a sync, on average
CLOCK_AHEAD_S_MAX = 10.0  # how far the cluster's clock may be ahead of the machines'; clock_offset_ms allows less
DISK_FREE_PARTS, DISK_FREE_BYTES = 10, 5 << 30  # a disk is nearly full below a tenth, and below 5 GiB, of free room
CERTIFICATE_DAYS = 30
DAY_S = 86_400
OUT_OF_SERVICE = (Mode.DAMAGED.label, Mode.REPAIRING.label)


@dataclass(frozen=True, slots=True)
class TroubleKind:
    """One kind of trouble of a node or its cluster."""

    code: str  # a stable word for programs
    title: str  # the meaning of the trouble, as a phrase
    do: str  # what to do about the trouble
    find: Find
    useless: bool = False  # whether clients should send the node no requests; ``/readyz`` fails then
    after_s: float = 0.0  # how long the trouble must last before it is reported, in seconds

    def as_data(self, text: str) -> dict[str, Any]:
        """Return the trouble as plain data, with its facts as text."""
        return {"code": self.code, "text": text, "do": self.do, "useless": self.useless}


KINDS: dict[str, TroubleKind] = {}  # by code, the most urgent first


def _trouble(title: str, do: str, *, useless: bool = False, after_s: float = 0.0) -> Callable[[Find], Find]:
    """Return a decorator that adds a kind to ``KINDS``; its code is the name of the function that finds it."""

    def add(find: Find) -> Find:
        code = find.__name__.removeprefix("_")
        KINDS[code] = TroubleKind(code, title, do, find, useless, after_s)
        return find

    return add


def reaches(node: Mapping[str, Any]) -> bool:
    """Return whether a member can be reached; the node itself always can."""
    return bool(node["up"]) and node["silent_ms"] < SILENT_MS_MAX


def _others(status: Status) -> dict[str, Mapping[str, Any]]:
    return {name: node for name, node in status["nodes"].items() if name != status["node"]}


def _only_counts(status: Status) -> bool:
    """Return whether the cluster's clock does not follow the wall, so that it does not show the time."""
    return status.get("cluster_clock") == "off"


@_trouble(
    "this node waits, because its file cannot be written",
    "make room, raise the quota, or mount the file system for writing; the node lost nothing, and resumes by itself",
    useless=True,
)
def _cannot_write(status: Status) -> str:
    return str(status.get("waits_for", ""))


@_trouble(
    "this node takes no requests",
    "do what the text says; until then clients use the other nodes by themselves",
    useless=True,
)
def _out_of_service(status: Status) -> str:
    return status["trouble"] or ""


@_trouble(
    "too few voters are in reach for anything to be committed",
    "start the voters that are down, or repair the network between them; 'bedrockish nodes' shows which ones "
    "this node does not hear",
    useless=True,
)
def _no_quorum(status: Status) -> str:
    nodes = status["nodes"].values()
    voters = sum(1 for node in nodes if node["role"] == "voter" and reaches(node))
    if voters >= status["quorum"]:
        return ""
    in_reach = "1 voter is" if voters == 1 else f"{voters} voters are"
    return f"{in_reach} in reach, and {status['quorum']} are needed to commit"


@_trouble("this node answers reads and takes no writes", "remove the cause; the node resumes by itself", useless=True)
def _read_only(status: Status) -> str:
    alarms = status.get("alarms", {})
    if status.get("mode") != Mode.READ_ONLY.label or status["trouble"]:
        return ""
    if set(alarms) == {UNPROVEN} and status["nodes"].get(status["node"], {}).get("role") == "learner":
        return ""  # a learner takes no writes in any case
    reasons = "; ".join(str(alarm.get("reason")) for alarm in alarms.values())
    return f"this node refuses writes: {reasons}"


def lacking(have: Mapping[str, int], others: Iterable[Mapping[str, int]]) -> int:
    """Return the number of commits that others have applied and that a vector lacks."""
    newest: dict[str, int] = {}
    for vector in others:
        for leader, tick in vector.items():
            newest[leader] = max(tick, newest.get(leader, 0))
    return sum(max(0, tick - have.get(leader, 0)) for leader, tick in newest.items())


@_trouble(
    "this node lacks commits that others have",
    "wait if it has just been started; else look at its disk, its processor and its network",
    useless=True,
    after_s=2.0,
)
def _behind(status: Status) -> str:
    reached = [node["applied"] for node in _others(status).values() if reaches(node)]
    behind = lacking(status["applied"], reached)
    return f"{behind} commits are still to be fetched" if behind > BEHIND_MAX else ""


@_trouble(
    "the cluster has one voter",
    "promote another member ('bedrockish member promote'); three voters go on without one",
    after_s=5.0,
)
def _one_voter(status: Status) -> str:
    nodes = status["nodes"]
    voters = [name for name, node in nodes.items() if node["role"] == "voter"]
    if len(nodes) < 2 or len(voters) != 1:
        return ""
    return f"{voters[0]} is the only voter of {len(nodes)} members: while it is down nothing can be written"


@_trouble(
    "the disk of the database is nearly full",
    "make room before it is full, because this node then stops writing: shorten the journal ('bedrockish journal "
    "prune'), or use a larger disk",
)
def _disk_filling(status: Status) -> str:
    disk = status.get("disk")
    if not disk or disk["free_bytes"] >= min(disk["total_bytes"] // DISK_FREE_PARTS, DISK_FREE_BYTES):
        return ""
    share = 100 * disk["free_bytes"] / max(1, disk["total_bytes"])
    return f"the disk of {status.get('database')} has {disk['free_bytes'] >> 20} MiB left, {share:.0f} % of it"


@_trouble(
    "this node's tables are a copy that is not compared with its journal yet",
    "wait: the node compares it in the background, for about as long as a replay takes, and can be promoted then",
)
def _unproven_copy(status: Status) -> str:
    return str(status.get("alarms", {}).get(UNPROVEN, {}).get("reason", ""))


@_trouble(
    "entries of this node's journal are damaged, and it cannot give them to others",
    "fill the node again from another one ('bedrockish member repair URL NODE'); its tables are not affected",
)
def _journal_damaged(status: Status) -> str:
    damaged = status.get("journal_damaged", {})
    return "; ".join(f"{place}: {why}" for place, why in damaged.items())


@_trouble(
    "a transaction stays without a known outcome",
    "start its leader, or enough voters for a quorum: they decide it by themselves",
)
def _in_doubt(status: Status) -> str:
    old = [one for one in status.get("in_doubt", ()) if one["age_ms"] > IN_DOUBT_MS_MAX]
    if not old:
        return ""
    first = old[0]
    more = f", and {len(old) - 1} more" if len(old) > 1 else ""
    return (
        f"the outcome of {first['txid']}, led by {first['leader']}, has not been known for "
        f"{first['age_ms'] / 1000:.0f} s{more}; transactions that conflict with it wait"
    )


@_trouble(
    "safe time does not advance: strict reads, the feed and schema changes wait for it",
    "start the voters that are missing, or remove those that will not come back ('bedrockish member remove')",
    after_s=2.0,  # a node that was paused, or waited for room, needs time to receive messages
)
def _safe_time(status: Status) -> str:
    lag = status.get("safe_lag_ms") or 0.0
    if lag <= SAFE_LAG_MS_MAX or _only_counts(status):
        return ""
    # If a node still has to apply entries, or applies none, its safe time is old because of the node and not because of
    # voters. Another trouble reports that; removing voters would not help.
    if status.get("mode") in OUT_OF_SERVICE or status.get("blocked") or _behind(status):
        return ""
    voters = ((name, node) for name, node in _others(status).items() if node["role"] == "voter")
    late = [name for name, node in voters if (node.get("report_lag_ms") or 0.0) > lag / 2]
    because = f"; it waits for {', '.join(late)}" if late else ""
    return f"safe time has not advanced for {lag / 1000:.0f} s{because}"


def _duration(seconds: float) -> str:
    """Return a duration in its largest unit of which it has at least two."""
    units = (("days", DAY_S), ("hours", 3_600), ("minutes", 60))
    return next((f"{seconds / size:.0f} {unit}" for unit, size in units if seconds >= 2 * size), f"{seconds:.1f} s")


def _own_offset_ms(status: Status) -> float:
    """Return the milliseconds by which most others' clocks are ahead of this machine's; negative: behind it."""
    reported = (node.get("wall_offset_ms") for node in _others(status).values())
    offsets = sorted(offset for offset in reported if offset is not None)
    return offsets[len(offsets) // 2] if offsets else 0.0


def _comes_late(node: Mapping[str, Any]) -> bool:
    """Return whether a node's clock only seems to be behind because its messages arrive late.

    A message has the time at which it was made, and leaves when its node's disk has synced.
    """
    return -(node["wall_offset_ms"] or 0.0) - SKEW_MS_MAX < (node.get("report_lag_ms") or 0.0)


@_trouble(
    "clocks of machines differ",
    "set the clock of that machine, and synchronize it by NTP or chrony: transactions of a clock that is too far "
    "ahead are refused",
    after_s=5.0,
)
def _clock_skew(status: Status) -> str:
    offsets = {
        name: node["wall_offset_ms"] for name, node in _others(status).items() if node.get("wall_offset_ms") is not None
    }
    if not offsets:
        return ""
    ours = _own_offset_ms(status)
    off = {name: offset for name, offset in offsets.items() if abs(offset) > SKEW_MS_MAX}
    if abs(ours) <= SKEW_MS_MAX:
        nodes = status["nodes"]
        off = {name: offset for name, offset in off.items() if offset > 0 or not _comes_late(nodes[name])}
    if len(offsets) > 1 and len(off) * 2 > len(offsets) and abs(ours) > SKEW_MS_MAX:
        way = "behind" if ours > 0 else "ahead of"
        return f"this machine's clock is {_duration(abs(ours) / 1000)} {way} most others'"
    return "; ".join(
        f"the clock of {name} is {_duration(abs(offset) / 1000)} "
        f"{'ahead of' if offset > 0 else 'behind'} this machine's"
        for name, offset in sorted(off.items())
    )


@_trouble(
    "most machines' clocks have leapt ahead further than the cluster follows",
    "correct the clocks; if they are right, as after a pause of all machines, restart the nodes one by one,"
    " or raise clock_leap_ms",
)
def _clock_leap(status: Status) -> str:
    leap_s = status.get("clock_leap_ms", 0) / 1000
    if not leap_s:
        return ""
    return (
        f"most machines' clocks have leapt ahead by {_duration(leap_s)}, and the cluster's clock does not follow them"
    )


@_trouble(
    "the cluster's clock is ahead of the machines' clocks",
    "nothing is lost; until the machines have caught up, retention, tokens and CURRENT_TIMESTAMP use a clock "
    "that stands still: synchronize the machines' clocks by NTP or chrony, and do not set them ahead on purpose",
    after_s=5.0,
)
def _clock_ahead(status: Status) -> str:
    if "clock_ahead_ms" not in status:
        return ""
    ahead_s = (status["clock_ahead_ms"] - _own_offset_ms(status)) / 1000
    if ahead_s <= CLOCK_AHEAD_S_MAX or _only_counts(status):
        return ""
    return f"the cluster's clock is {_duration(ahead_s)} ahead of most machines', and stands until they have caught up"


@_trouble(
    "requests wait for a background worker",
    "look for the statements that take long ('bedrockish explain'), give them an index, or raise workers_max; "
    "restart a node with statements that do not stop",
    after_s=10.0,
)
def _workers_busy(status: Status) -> str:
    workers = status.get("workers", {})
    places = workers.get("places", 0)
    waits = workers["waiting"] or workers["stuck"]
    if not places or not waits or (workers["running"] < places and not workers["stuck"]):
        return ""
    stuck = f", and {workers['stuck']} do not stop although they were stopped" if workers["stuck"] else ""
    return f"all {places} background workers are busy, and {workers['waiting']} requests wait for one{stuck}"


@_trouble(
    "requests are refused because of memory_max",
    "read large results as streams, write large transactions in parts, or raise memory_max",
)
def _memory_full(status: Status) -> str:
    memory = status.get("memory")
    if not memory or not memory["recently_refused"]:
        return ""
    return (
        f"{memory['recently_refused']} requests were refused in the last minute, because {memory['taken_bytes'] >> 20} "
        f"of {memory['max_bytes'] >> 20} MiB (memory_max) are taken"
    )


@_trouble(
    "too many files and connections are open: new clients are refused",
    "find the clients with many connections, use a pool, or raise the limit of open files (ulimit -n, LimitNOFILE)",
)
def _files(status: Status) -> str:
    files = status.get("files")
    if not files or files["open"] < files["max"]:
        return ""
    return f"{files['open']} files and connections are open; above {files['max']} new clients are refused"


@_trouble(
    "a reader keeps an old snapshot, and the write-ahead log grows",
    "end the program that the text names, or resume it: a stopped one (SIGSTOP) keeps its snapshot, and so does "
    "one that reads for long in one transaction or db.snapshot()",
    after_s=5.0,
)
def _wal_held(status: Status) -> str:
    held = status.get("wal_held")
    if not held:
        return ""
    readers = ", ".join(held["readers"])
    who = f"a program that reads the file: {readers}" if readers else "a long read of this node: a stream or a copy"
    return f"the log has {held['bytes'] >> 20} MiB, and it cannot be used again before the end of {who}"


def _half_heard(node: Mapping[str, Any]) -> bool:
    """Return whether a member connects to this node but does not answer at its address."""
    return not node["up"] and 0 < node["silent_ms"] < SILENT_MS_MAX and not node["trouble"]


@_trouble(
    "a member cannot be reached at the address that the cluster knows",
    "if it has moved, change its address ('bedrockish member address URL NODE HOST:PORT'); otherwise repair "
    "the network to it",
    after_s=5.0,
)
def _address(status: Status) -> str:
    others = _others(status)
    found = [
        f"{name} is heard, and does not answer at its address, {node.get('address')}"
        for name, node in sorted(others.items())
        if _half_heard(node)
    ]
    me = status["nodes"].get(status["node"])  # a joining node is not a member yet, so its peers need not reach it
    if me and others and all(node["up"] and node["silent_ms"] >= SILENT_MS_MAX for node in others.values()):
        own = me.get("address")
        found.append(f"all others answer, and none of them reaches this node at the address that they know, {own}")
    return "; ".join(found)


@_trouble(
    "another member has not been heard for three seconds",
    "start it, or repair the network; 'bedrockish member replace' if its machine is lost",
    after_s=2.0,
)
def _node_away(status: Status) -> str:
    return "; ".join(
        (
            f"{name} cannot be reached"
            if not node["up"] and not node["silent_ms"]
            else f"{name} has not been heard for {node['silent_ms'] / 1000:.0f} s"
        )
        + (f" ({node['unreachable']})" if node.get("unreachable") else "")
        for name, node in sorted(_others(status).items())
        if not reaches(node) and not node["trouble"] and not _half_heard(node)
    )


@_trouble(
    "another member lacks commits that are here",
    "look at its disk, its processor and its network; its own status says more",
    after_s=10.0,
)
def _node_behind(status: Status) -> str:
    found = []
    for name, node in sorted(_others(status).items()):
        behind = lacking(node["applied"], [status["applied"]]) if reaches(node) else 0
        if behind > BEHIND_MAX:
            found.append(f"{name} lacks {behind} commits that are here")
    return "; ".join(found)


@_trouble(
    "another member is slow",
    "look at its disk (the metric bedrockish_sync_seconds) and its network: the safe time of all nodes waits for it",
    after_s=10.0,
)
def _node_slow(status: Status) -> str:
    return "; ".join(
        f"the messages of {name} are {node['report_lag_ms'] / 1000:.1f} s old when they arrive"
        for name, node in sorted(_others(status).items())
        if reaches(node) and (node.get("report_lag_ms") or 0.0) > SLOW_MS_MAX and not _only_counts(status)
    )


@_trouble(
    "something is wrong with another member", "do what the text says; 'bedrockish status' of that member says more"
)
def _node_trouble(status: Status) -> str:
    return "; ".join(f"{name}: {node['trouble']}" for name, node in sorted(_others(status).items()) if node["trouble"])


@_trouble(
    "another member sends messages that cannot be read",
    "look at the release that it runs, and at this node's log, which names the message and the field",
)
def _nonsense(status: Status) -> str:
    return "; ".join(f"{name} sends messages that cannot be read" for name in sorted(status.get("left_alone", {})))


@_trouble(
    "the cluster still uses the messages of an older release",
    "install this release on the members named, or remove those that are gone ('bedrockish member remove')",
    after_s=3_600.0,
)
def _upgrade_unfinished(status: Status) -> str:
    """Return, as a text, which members keep the cluster's level below this program's: not upgraded, or gone."""
    level, own = status.get("cluster_level", 0), status.get("level", 0)
    below = {
        name: node.get("level") for name, node in sorted(_others(status).items()) if (node.get("level") or 0) < own
    }
    if level >= own or not below:
        return ""
    levels = "; ".join(f"{name} has reported {level or 'none'}" for name, level in below.items())
    return f"the cluster speaks at release level {level}, and this program supports {own}: {levels}"


@_trouble(
    "a certificate is about to expire, or is refused",
    "make a new one with the cluster's authority ('bedrockish tls certs') in time, and send the node SIGHUP: "
    "without a valid one no link can be opened",
)
def _certificate(status: Status) -> str:
    peers = {f"the certificate of {node}": end for node, end in status.get("peer_certificates", {}).items()}
    ends = {**status.get("certificates", {}), **peers}
    left = {name: (end - status["wall_s"]) / DAY_S for name, end in ends.items()}
    near = ((name, days) for name, days in left.items() if days < CERTIFICATE_DAYS)
    expiring = [f"{name} {'has expired' if days < 0 else f'expires in {days:.0f} days'}" for name, days in near]
    has_ended = any(end < status["wall_s"] for end in status.get("certificates", {}).values())
    fault = "" if has_ended else status.get("certificate_fault", "")
    return "; ".join(filter(None, [fault, *expiring]))


@_trouble(
    "the disk takes long for each sync, and every commit here waits for it",
    "check what else uses the disk, and the metric bedrockish_sync_seconds; move the node to a quicker disk",
    after_s=10.0,
)
def _disk_slow(status: Status) -> str:
    sync_ms = status.get("sync_ms") or 0
    return f"the disk takes {sync_ms / 1000:.1f} s for each sync lately" if sync_ms > SYNC_MS_MAX else ""


def _recent(status: Status, kind: str) -> str:
    count = status.get(f"{kind}_errors_recent", 0)
    return f"{count} times in the last ten minutes, the last one: {status.get(f'{kind}_error_last')}" if count else ""


@_trouble(
    "the disk could not read or write",
    "look at the disk and at what the system's log says of it; move the node to another machine if it fails again",
)
def _disk_failing(status: Status) -> str:
    return _recent(status, "disk")


@_trouble(
    "the machine gives the node no further thread, memory or file",
    "raise the limit that the text names, or end other programs; until then clients use other nodes",
)
def _machine_limit(status: Status) -> str:
    return _recent(status, "limit")


@_trouble("the node's program has failed at requests", "find the traceback in the node's log by its id, and report it")
def _internal_errors(status: Status) -> str:
    count = status.get("internal_errors_recent", 0)
    return f"{count} in the last ten minutes, the last one: {status.get('internal_error_last')}" if count else ""


CANNOT_WRITE = KINDS["cannot_write"]


class Troubles:
    """The present troubles of one node, each with the time at which it began."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def find(self, status: Status, now_s: float) -> list[dict[str, Any]]:
        """Return the troubles as plain data, the most urgent first.

        Args:
            now_s: a clock that only goes forward, in seconds.
        """
        found = []
        for kind in KINDS.values():
            text = kind.find(status)
            if not text:
                self._since.pop(kind.code, None)
                continue
            since = self._since.setdefault(kind.code, now_s)
            if now_s - since >= kind.after_s:
                found.append({**kind.as_data(text), "since_ms": round(1000 * (now_s - since))})
        return found


def not_ready(status: Status) -> list[str]:
    """Return the reasons not to send requests to a node; empty if the node is ready."""
    return [str(one["text"]) for one in status.get("troubles", ()) if one["useless"]]
