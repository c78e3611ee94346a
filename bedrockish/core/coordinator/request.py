"""One client's request on its way through this node, and the errors with which it may be answered."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from bedrockish.api.requests import Answer, Request, Token, digest_of
from bedrockish.core.protocol.events import ClockWanted, Executed, Failed, Overtaken
from bedrockish.core.protocol.messages import Reject
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import command_key
from bedrockish.core.state.outbox import Timer
from bedrockish.core.state.settings import Settings
from bedrockish.core.state.state import State
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    DeadlineError,
    LearnerError,
    OutcomeUnknownError,
    ReadOnlyError,
    UnavailableError,
)
from bedrockish_journal.model.access_set import AccessSet, is_clock, object_of, object_range
from bedrockish_journal.model.changes import OVERTAKEN
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import Vector, merge

ENDING_MS = 1_500  # how long a request whose deadline has passed waits for the end of its last attempt
STALE_CLOCKS_MAX = 5  # a request fails if its transaction clock is too old after more executions than this
KEY_BYTES = 32  # the length of a key, for estimates
RETRY_MS_MIN, RETRY_MS_MAX = 2, 200  # pause before a rejected command runs again; doubled each time, with jitter
READ_AGAIN_MS = 5  # pause before a strict read is executed again after a conflict
NAMED_MAX = 256  # most transactions that a CHECKED names if the CHECK asks about every key
NAMED_BEFORE = 16  # most transactions in any other CHECKED; in the releases 0.2.0 and 0.2.1, in every CHECKED


class Stage(Enum):
    """The work or the wait in which a request is now."""

    TOKEN = "waits until this node has the commits that its session has seen"
    EXECUTING = "is being executed"
    CHECKING = "asks a majority whether its read is valid"
    CATCHING_UP = "waits for the ends of the transactions that a majority has named"
    OFFERED = "waits until its transaction's pieces are at a quorum"
    CLOCK = "asks a majority for a transaction clock"
    WAITING = "waits for a transaction that it conflicts with"
    PAUSED = "pauses before it is executed again"
    VOTING = "waits for approvals"
    SCHEMA = "waits until a schema change is in force"
    ACTIVATING = "is a schema change that was committed, and waits until it is in force"
    ENDING = "is past its deadline and waits for the end of its last attempt"

    __hash__ = object.__hash__  # Enum's own ``__hash__`` is a call in Python, and each move looks a stage up


_ENDS = frozenset({Stage.ENDING, Stage.ACTIVATING})  # entered at the deadline, and when a schema change is committed
# The stages after a wait: another execution, its clock, a further obstacle, or an end.
_AGAIN = frozenset({Stage.EXECUTING, Stage.CLOCK, Stage.WAITING, Stage.SCHEMA}) | _ENDS

# The stages of a request as a state machine: by stage, the possible next stages. An answered request has no stage.
MOVES: Mapping[Stage, frozenset[Stage]] = {
    Stage.TOKEN: _AGAIN,
    Stage.EXECUTING: _AGAIN | {Stage.CHECKING, Stage.OFFERED, Stage.VOTING, Stage.PAUSED},
    Stage.CLOCK: _ENDS | {Stage.EXECUTING, Stage.CHECKING},
    Stage.CHECKING: _ENDS | {Stage.PAUSED, Stage.WAITING, Stage.SCHEMA, Stage.CATCHING_UP},
    Stage.CATCHING_UP: _AGAIN,
    Stage.OFFERED: _ENDS | {Stage.EXECUTING},
    # To VOTING if the request shares the transaction of the request before it; to PAUSED while other leaders have a
    # turn.
    Stage.WAITING: _AGAIN | {Stage.VOTING, Stage.PAUSED},
    Stage.PAUSED: _AGAIN,
    # If the transaction is given up, its first request pauses, and the requests that share it wait for that one.
    Stage.VOTING: _ENDS | {Stage.PAUSED, Stage.WAITING},
    Stage.SCHEMA: _AGAIN,
    Stage.ENDING: frozenset({Stage.ACTIVATING}),  # the last attempt turned out to be a committed schema change
    Stage.ACTIVATING: frozenset(),
}


@dataclass(slots=True)
class Awaited:
    """The transactions whose ends a strict read of the cluster's own tables waits for."""

    config: int  # the version of the membership whose majority was asked
    txids: set[Txid] = field(default_factory=set)  # those that are still open here, or committed and not applied
    safe: int = 0  # the clock that safe time has to reach if a voter's answer had no room for all transactions; else 0
    times_asked: int = 0  # how often the leaders of these transactions were asked for outcomes

    def add(self, others: Iterable[Txid], clock: int) -> None:
        """Add the transactions that a voter has named; ``clock`` is the voter's clock then."""
        named = tuple(others)
        self.txids.update(named)
        # The voter may know more transactions than it could name. None of them has a clock above the voter's: once safe
        # time has reached that clock, all of them have ended, and the commits among them are applied.
        if len(named) == NAMED_BEFORE or len(named) >= NAMED_MAX:
            self.safe = max(self.safe, clock)

    def have_ended(self, state: State) -> bool:
        """Return whether all awaited transactions have ended, and the commits among them are applied here."""
        safe, outcomes = state.clock.safe, state.votes.outcomes
        self.txids = {
            txid
            for txid in self.txids
            # Up to safe time, every commit is applied, and every other transaction was rolled back.
            if txid.clock > safe and outcomes.get(txid) is not False and not state.is_applied(txid)
        }
        return not self.txids and self.safe <= safe


@dataclass(slots=True)
class InFlight:
    """One client's request, from its arrival to its answer.

    Why so large: One request passes through all stages, and its error names the reasons of all of its attempts.
    """

    number: int  # the driver's number of the request
    request: Request
    deadline: float  # seconds at which the client stops waiting
    stage: Stage = Stage.TOKEN
    attempts: int = 0  # how often the request was executed
    rejections: int = 0  # how often voters rejected its transactions
    access_set: AccessSet | None = None  # the access set of its last execution
    # Its last execution, if that only read: the answer waits until a majority was asked about the reads or the clock.
    unchecked_read: Prepared | None = None
    open: set[Txid] = field(default_factory=set)  # its transactions whose end is not known yet
    # The numbers of the requests that wait until this request has begun a transaction or has ended.
    behind: deque[int] = field(default_factory=deque)
    last_reject: Reject | None = None  # the last reject that named another transaction
    wants_clock: bool = False  # whether it calls transaction_clock()
    last_clock: int = 0  # the last clock with which it has begun a transaction
    stale_clocks: int = 0  # how often its clock was too old at the end of its execution
    # For the error if the request does not happen: why this node has begun no transaction, or why a voter has rejected
    # the transaction's clock; else empty.
    refusal: str = ""
    late_voter: str = ""  # the last voter that rejected a transaction of the request as TOO LATE
    differing_voter: str = ""  # the last voter that rejected one because its rows differ from this node's rows
    once: bool = False  # whether it cannot be executed again, because its client has seen its reads and acted on them
    is_long: bool = False  # whether its deadline was extended (``extend``)
    error: BedrockishError | None = None  # the error to answer when the last of its attempts has ended without a commit
    # The error of its execution, while a majority is asked whether the error rests on the newest data.
    unchecked_error: BedrockishError | None = None
    answer: Answer | None = None  # the answer to send when its schema change is in force
    offered: Prepared | None = None  # its execution, while the pieces of it are under way to a quorum
    # Its last execution, if that is large: after a conflict it is proposed again if no newer commit changes its result.
    kept: Prepared | None = None
    contested: bool = False  # whether it has waited for other transactions, or was rejected because of one
    writes: bool = False  # whether an execution of it has written, or the driver knows that it writes
    alters: bool = False  # whether its last execution changed the schema
    early_activations: int = 0  # how often its schema change would have come into force too soon for a voter
    # Whether it shares a transaction only because it arrived in the same batch, and so need not wait for the others.
    only_batched: bool = False
    was_divided: bool = False  # whether the group of requests with which it was batched has met a conflict
    # While the request pauses for its turn: seconds at which the pause began, and the leaders whose turns come first.
    turn: tuple[float, list[str]] | None = None
    arrived_at: float = 0.0  # seconds at which it arrived
    # ``executed_at`` and ``execution_s``: seconds at which its last execution began, and how long the execution took.
    executed_at: float = 0.0
    execution_s: float = 0.0
    reserves: bool = False  # whether it has a reservation (``Reservations``)
    goes_first: bool = False  # whether its reservation is honoured now
    last_conflict: Conflict | None = (
        None  # the conflict of its last failed execution here: another transaction, and a key
    )
    awaited: Awaited | None = None  # the transactions that it waits for at the stage CATCHING_UP
    # For a strict read of the cluster's own tables, a vector with every commit that was acknowledged before the request
    # arrived; None if none is known.
    required_vector: Vector | None = None

    @property
    def can_share(self) -> bool:
        """Whether the request only writes rows, by statements, so that similar requests can share its transaction."""
        request = self.request
        is_apart = self.wants_clock or self.alters or request.read_only or request.change
        return self.writes and not is_apart

    def move(self, stage: Stage) -> None:
        """Enter another stage; ``MOVES`` must allow it after the present one."""
        assert stage in MOVES[self.stage], f"a request that {self.stage.value} does not go on to: {stage.value}"
        self.stage = stage

    def keep(self, prepared: Prepared) -> None:
        """Keep an execution, to propose it again after a conflict."""
        # Not kept: an execution that other requests share, or whose clock or reads the client has seen, because these
        # belong to one snapshot.
        if not (self.once or prepared.clock or prepared.joined):
            self.kept = prepared

    def extend(self, state: State) -> bool:
        """Extend the deadline once, if this node is at work on the request and its client has time; return whether.

        At work means: the request is being executed, its pieces are under way, or it has a reservation. Another node
        would have to start from the beginning.
        """
        more_s = self.request.longest_s - self.request.timeout_s
        # A request that waits for others is not extended, unless it has a reservation: another node may be quicker. Nor
        # is a request whose pieces this node cannot send to a quorum: another node may reach one.
        travels = self.stage is Stage.OFFERED and 1 + len(state.roster.voters_up()) >= state.roster.quorum
        is_at_work = self.stage is Stage.EXECUTING or travels or self.reserves
        if not is_at_work or more_s <= 0 or self.is_long:
            return False
        self.is_long = True
        self.deadline += more_s
        state.timers.set(1000 * more_s, Timer.REQUEST_DEADLINE, self.number)
        return True


# The result of a stage: that of an execution; whether a strict read is valid, or the transactions that it has to wait
# for; None at the end of a wait.
StageResult = Executed | Overtaken | ClockWanted | Failed | Awaited | bool | None


class Ready:
    """The queue of the requests whose stage has ended; ``Coordinator.advance`` moves each to its next stage."""

    def __init__(self) -> None:
        # The requests by number, each with its stage when it was added, and the result of that stage.
        self.queue: dict[int, tuple[InFlight, Stage, StageResult]] = {}

    def add(self, inflight: InFlight, result: StageResult = None) -> None:
        """Enqueue a request whose stage has ended; ``advance`` skips it if the request has changed its stage."""
        self.queue[inflight.number] = inflight, inflight.stage, result


def committed(state: State, inflight: InFlight, transaction: Transaction, place: tuple[str, int]) -> Answer:
    """Return the answer of a request whose transaction was committed at ``place``."""
    seen = inflight.request.token
    # The vector has the commit and its base: every node that serves the session later has to show both.
    vector = merge(transaction.base, {place[0]: place[1]}, seen.vector)
    # A session that has changed the schema must not be served where the change is not in force yet.
    clock = max(transaction.txid.clock, transaction.activates, seen.clock)
    result = transaction.result_of(inflight.request.command)
    return Answer(result, Token(state.timelines.in_short(vector), clock), place, inflight.attempts)


def make_transaction(
    state: State, inflight: InFlight, prepared: Prepared, clock: int, activates: int, rollbacks: tuple[Txid, ...]
) -> Transaction:
    """Return the transaction that a request's BEGIN carries."""
    assert inflight.access_set is not None
    assert clock > state.clock.closed, "our own vote would reject it as too late"
    return Transaction(
        Txid(clock, state.me),
        # Sorted, so that equal transactions have equal bytes and one hash.
        dict(sorted(state.timelines.in_short(prepared.base).items())),
        # Not the present safe time, which may have passed commits that are not in this base.
        state.safe_of(prepared.base),
        prepared.schema,
        state.roster.membership.version,
        inflight.request.command,
        inflight.request.isolation,
        prepared.kind,
        inflight.access_set,
        prepared.changes,
        prepared.result,
        rollbacks,
        activates,
        prepared.joined,
        prepared.shares,
        prepared.users or ((inflight.request.user,) if inflight.request.user else ()),
        prepared.digests if prepared.joined else (digest_of(inflight.request),),
    )


def is_large(prepared: Prepared, limit: int) -> bool:
    """Return whether an execution, by an estimate of its size, is too large to be sent in the BEGIN itself."""
    keys = prepared.access_set
    # Encoding the execution for its exact size would take as long as cutting it into pieces.
    size = len(prepared.changes) + len(prepared.result) + KEY_BYTES * (len(keys.read_points) + len(keys.write_points))
    for _, result in prepared.joined:
        size += len(result)
    return size > limit


def schema_failed(failure: str) -> BedrockishError:
    """Return the error for a committed schema change that failed on the data at its activation."""
    if failure.startswith(OVERTAKEN):
        return ConflictError(
            f"rows that the schema change depends on were changed before it came into force: {failure}; the change "
            "did not happen on any node: run it again",
            table="schema",
            decided=True,
        )
    return ConstraintError(
        f"the schema change was committed, but the data forbade it at its activation: {failure}; the schema is "
        "unchanged on every node: repair the data and change the schema again",
        decided=True,
    )


def no_safe_time(state: State) -> str:
    """Return why a transaction was not begun: safe time is too far behind our clock."""
    late_ms = milliseconds(state.clock.value) - milliseconds(state.clock.safe)
    behind = f"is {late_ms} ms behind" if state.clock.safe else "is not known yet"
    return (
        f"safe time {behind} at node {state.me}: no majority of the voters answers, or the clock of {state.me} is too "
        "far ahead of theirs; 'bedrockish clock URL' shows both"
    )


def no_time(state: State) -> str:
    """Return why a transaction was not begun: too few voters have reported their wall clocks to this node."""
    return f"node {state.me} does not know the wall clocks of a majority of the voters yet"


def clock_refused(me: str, peer: str) -> str:
    """Return why a voter refused a transaction: our clock is too far ahead."""
    return (
        f"{peer} refuses it, because the clock of {me} is further ahead than most voters' clocks allow; set the "
        f"machine's clock, or stop following it ('bedrockish clock URL off')"
    )


def write_elsewhere(state: State) -> LearnerError:
    """Return a learner's error for a write, with the addresses of the voters."""
    voters = _voters_by_reach(state)
    where = ", ".join(f"{node} at {address}" for node, address in voters.items())
    return LearnerError(f"node {state.me} is a learner, which only reads; write at a voter: {where}", voters=voters)


def write_refused(state: State) -> UnavailableError:
    """Return the error for a write at a node that may not lead: a learner, or a voter that only reads for now."""
    if state.health.writes:
        return write_elsewhere(state)
    why = f"node {state.me} only reads for now: {state.health.reason}"
    return ReadOnlyError(why, alarm=state.health.name)


def out_of_service(state: State) -> UnavailableError:
    """Return the error for a request at a node that serves none; a removed node names the voters, as a learner does."""
    if state.me in state.roster.membership.members or state.roster.joining is not None or state.roster.barred:
        return UnavailableError(state.trouble)
    return LearnerError(state.trouble, voters=_voters_by_reach(state))


def _voters_by_reach(state: State) -> dict[str, str]:
    """Return the addresses of the voters by name, those with a link to this node first."""
    members, peers = state.roster.membership.members, state.roster.peers
    reachable = sorted(state.roster.voters, key=lambda node: not (node in peers and peers[node].up))
    return {node: members[node].address for node in reachable}


def came_too_late(peer: str) -> str:
    """Return the end of an error text: a BEGIN reached a voter too late."""
    return (
        f": it reached {peer} later than closing_lag_ms allows; check the disk here and the network, or raise "
        "closing_lag_ms at every node"
    )


def rows_differ(me: str, peer: str) -> str:
    """Return why a voter refused a transaction: its rows differ from this node's rows."""
    return (
        f"{peer} has other rows than {me}: the tables of one of the two are damaged; unless repair_automatic is off, "
        "that node fills its tables again, which takes minutes for a file of gigabytes; 'bedrockish verify URL' names "
        "the rows"
    )


def retry_pause_ms(inflight: InFlight, settings: Settings, draw: float) -> float:
    """Return the pause of a request after a rejection: longer each time, with jitter.

    If the rejection names a schema change that this node lacks, each attempt fails until the change arrives: the pause
    is longer, and the arrival of the change ends it.
    """
    ceiling: float = min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** min(inflight.rejections, 10))
    if inflight.last_reject is not None and is_clock(inflight.last_reject.key):
        ceiling = max(ceiling, settings.schema_delay_ms)
    # Random, because two requests that rejected each other would otherwise meet again. Never 0: an immediate attempt
    # would fail again.
    return ceiling * (0.25 + 0.75 * draw)


def unknown(inflight: InFlight) -> BedrockishError:
    """Return the error for a request whose outcome is not known at its deadline."""
    command = inflight.request.command
    # The change is in the journal, so the client can ask again by the same id. Whether the data allows it is not known.
    if inflight.stage is Stage.ACTIVATING:
        return OutcomeUnknownError(
            f"command {command} is committed, and its schema change was not in force in time; send the command "
            "again with the same id to learn whether the change came into force",
            command=command,
        )
    return OutcomeUnknownError(
        f"no majority could be asked for the outcome of command {command}; send the command again with the same id",
        command=command,
    )


FORGED = (
    "the session token: its clock is further ahead than any clock of this cluster can be, so no node gave it; "
    "leave it out, or use the token of the last answer"
)


def lagging(error: BedrockishError) -> BedrockishError:
    """Return an error with the detail ``lagging``: this node knows of commits that it lacks."""
    return type(error)(error.message, **{**error.details, "lagging": True})


def did_not_happen(inflight: InFlight, state: State) -> BedrockishError:
    """Return the error for a request whose attempts here have all ended without a commit."""
    reject, request = inflight.last_reject, inflight.request
    # The most specific reason comes first, because a client can act on it.
    if not inflight.attempts and not state.has_seen(request.token):
        return UnavailableError(
            f"node {state.me} has not caught up with this session in {request.timeout_s:g} s; try another node"
        )
    if inflight.error is not None:
        return inflight.error
    if inflight.refusal:
        return UnavailableError(f"command {request.command} did not happen: {inflight.refusal}")
    if inflight.offered is not None:
        # The error names the bytes, so that a reader can tell whether the link was fast enough.
        size = len(inflight.offered.changes) + len(inflight.offered.result)
        return DeadlineError(
            f"the {size} bytes of command {request.command} were not at a quorum of {state.roster.quorum} nodes in "
            f"{request.timeout_s:g} s; the command did not happen: give it more time, or split it into several"
        )
    awaited = inflight.awaited
    if awaited is not None and inflight.required_vector is None:
        missing = f"{min(awaited.txids)} and perhaps others" if awaited.txids else "all of them"
        return DeadlineError(
            f"strict read {request.command}: transactions were under way when it began, and node {state.me} did not "
            f"learn in {request.timeout_s:g} s the outcomes of {missing}; run it again, or read at the level session"
        )
    if reject is not None and reject.other is not None:
        # A voter still holds an earlier attempt, with which each later attempt conflicts by the key of the command. The
        # cause is the voter with other rows, which rejected the earlier attempt.
        if inflight.differing_voter and reject.key == command_key(request.command):
            return UnavailableError(
                f"command {request.command} did not happen: {rows_differ(state.me, inflight.differing_voter)}"
            )
        return _conflict_error(inflight, reject.other, reject.key, state)
    if inflight.last_conflict is None or inflight.late_voter:
        return DeadlineError(
            f"no quorum of {state.roster.quorum} approvals in {request.timeout_s:g} s; command {request.command} "
            f"did not happen{came_too_late(inflight.late_voter) if inflight.late_voter else ''}"
        )
    return _conflict_error(inflight, inflight.last_conflict.other, inflight.last_conflict.key, state)


MEMBERS_OR_USERS = "the members or users of the cluster"
OTHER_COMMAND = "another command, which has no outcome yet or came first"


def _is_of_another(inflight: InFlight, key: bytes) -> bool:
    """Return whether a key is another command's id: only a change of the members or users conflicts there."""
    return key.startswith(command_key("")) and key != command_key(inflight.request.command)


def _conflict_error(inflight: InFlight, other: Txid, key: bytes, state: State) -> ConflictError:
    """Return the error for a request that met conflicts until its deadline."""
    if other in state.commit_window.member_changes:
        name = MEMBERS_OR_USERS
    else:
        name = OTHER_COMMAND if _is_of_another(inflight, key) else readable(object_of(key))
    return ConflictError(
        f"command {inflight.request.command} conflicted with {other} of {other.leader} on {name} in "
        f"{inflight.attempts} attempts; it did not happen, and it is safe to run it again{_advice(inflight, key)}",
        table=name,
        key=key.hex(),
        other=str(other),
        leader=other.leader,
        attempts=inflight.attempts,
    )


def _advice(inflight: InFlight, key: bytes) -> str:
    """Return advice for a request that conflicts in a range that it reads or writes; empty for a single key."""
    access_set = inflight.access_set
    is_of_a_command = key.startswith(command_key(""))
    if access_set is None or is_of_a_command or key in access_set.touched or not access_set.has_ranges:
        return ""
    way = "run it over a range of keys at a time"
    # If the request writes nothing in this object, the conflict is with its reads, which ``snapshot`` does not compare.
    low, high = object_range(object_of(key))
    writes_there = any(low <= written < high for written in access_set.write_points)
    if not writes_there and not any(first < high and low < last for first, last in access_set.write_ranges):
        way = "let it read a snapshot (isolation='snapshot')"
    return f"; others write {readable(object_of(key))} all the time: {way}, or give it more time"


def readable(name: str) -> str:
    """Return the readable name of an object: ``table account`` for ``t:account``."""
    kind, _, rest = name.partition(":")
    words = {"t": "table", "i": "index", "u": "columns of"}
    if kind in words:
        return f"{words[kind]} {rest}"
    return {"e": "the schema", "c": "its own earlier run"}.get(kind, name)
