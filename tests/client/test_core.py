"""The client without sockets: each situation as a short script of events and expected actions."""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from bedrockish.api.requests import NOTHING, Answer, Request, Result, Statement, Token, encode_results
from bedrockish.api.url import parse_url
from bedrockish.api.wire import (
    BEGIN,
    CANCEL,
    COMMIT,
    EXPLAIN,
    PING,
    SETTLE,
    STATEMENTS,
    Answered,
    Ask,
    Execute,
    Failed,
    Reply,
    Step,
    Told,
    decode_call,
    encode_reply,
)
from bedrockish.client.sansio.core import IN_FLIGHT_MAX, ClientCore
from bedrockish.client.sansio.effects import Dial, Effect, Finish, HangUp, Send
from bedrockish.client.sansio.retry import Backoff, FailureMeaning, judge, only_reads
from bedrockish.errors import (
    BedrockishError,
    ClientClosedError,
    ConflictError,
    ConstraintError,
    DamagedError,
    DeadlineError,
    OutcomeUnknownError,
    ProtocolMismatchError,
    SqlError,
    TooLargeError,
    UnavailableError,
)

GONE = UnavailableError("the link broke")
FINE = Answer(encode_results([Result((), [], 1)]), Token({"B": 7}, 9), ("B", 7))


@dataclass
class Wire:
    """Drives a core by hand; keeps the links and calls that its effects make."""

    core: ClientCore
    now: float = 0.0
    dials: list[Dial] = field(default_factory=list)
    sent: list[tuple[int, Any]] = field(default_factory=list)
    hung_up: list[int] = field(default_factory=list)
    finished: dict[int, Answered | Told | BedrockishError] = field(default_factory=dict)

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Dial():
                    self.dials.append(effect)
                case Send(link, payload):
                    assert link not in self.hung_up
                    self.sent.append((link, decode_call(payload)))
                case HangUp(link):
                    self.hung_up.append(link)
                case Finish(call, outcome):
                    assert call not in self.finished, "a call has one outcome"
                    self.finished[call] = outcome
        assert self.core.deadline() > self.now, "a deadline that has passed would wake the driver for ever"

    def call(self, sql: str = "INSERT INTO t VALUES (1)", timeout_s: float = 10.0) -> int:
        number, effects = self.core.call(Request("c1", (Statement(sql),)), timeout_s, self.now)
        self.do(effects)
        return number

    def open(self, cluster: str = "") -> int:
        link = self.dials[-1].link
        self.do(self.core.opened(link, {"cluster_id": cluster} if cluster else {}, self.now))
        return link

    def close(self, link: int | None = None, error: BedrockishError = GONE) -> None:
        self.do(self.core.closed(self.dials[-1].link if link is None else link, error, self.now))

    def reply(self, reply: Reply, link: int | None = None) -> None:
        self.do(self.core.received(self.dials[-1].link if link is None else link, encode_reply(reply), self.now))

    def wait(self, until: float | None = None) -> None:
        self.now = self.core.deadline() if until is None else until
        self.do(self.core.woken(self.now))

    @property
    def ports(self) -> list[int]:
        return [dial.address.port for dial in self.dials]


def wire(url: str = "bedrockish://h:1,h:2,h:3") -> Wire:
    return Wire(ClientCore(parse_url(url), lambda: 0.5, backoff=Backoff(100, 1000)))


def test_client_dials_with_its_first_call() -> None:
    w = wire()
    assert w.core.deadline() == math.inf
    number = w.call()
    assert (w.ports, w.sent) == ([1], [])
    assert [(w.open(), number)] == [(at, call.id) for at, call in w.sent]
    w.reply(Answered(number, FINE))
    assert isinstance(w.finished[number], Answered)
    assert w.core.deadline() == math.inf


@pytest.mark.parametrize("tells", [True, False])
def test_abandoned_call_is_cancelled_at_a_node_that_stops_it(tells: bool) -> None:
    """A node of an older release does not know the call, and would log it as malformed."""
    w = wire()
    left, interrupted = w.call("SELECT 1"), w.call("SELECT 2")
    asked = [w.core.call(Ask(0, op, Statement("SELECT 3")), 10.0, w.now)[0] for op in (EXPLAIN, PING)]
    link = w.dials[-1].link
    w.do(w.core.opened(link, {"cancels": True} if tells else {}, w.now))
    w.sent.clear()
    for number in (left, *asked):
        w.do(w.core.cancel(number, w.now))
    w.do(w.core.interrupt(w.now))
    assert interrupted in w.finished
    cancels = [{"command": "c1"}, {"call": asked[0]}, {"command": "c1"}]
    assert [(at, call.op, call.asked) for at, call in w.sent] == [(link, CANCEL, one) for one in cancels if tells]


def test_commit_and_unsent_calls_are_not_cancelled_at_a_node() -> None:
    w = wire()
    w.do(w.core.cancel(w.call(), w.now))
    w.call()
    w.do(w.core.opened(w.dials[-1].link, {"cancels": True}, w.now))
    begun, effects = w.core.call(Step(0, Request("t1", ()), BEGIN), 10.0, w.now)
    w.do(effects)
    w.reply(Answered(begun, Answer(NOTHING, Token())))
    for op in (STATEMENTS, COMMIT):
        number, effects = w.core.call(Step(0, Request("t1", (Statement("SELECT 1"),)), op), 10.0, w.now)
        w.do(effects)
        w.do(w.core.cancel(number, w.now))
    assert [call.asked for _, call in w.sent if isinstance(call, Ask)] == [{"command": "t1"}]
    assert [call.op for _, call in w.sent[-3:]] == [STATEMENTS, CANCEL, COMMIT]


def test_client_dials_all_addresses_once_and_then_pauses() -> None:
    w = wire()
    w.call()
    for _ in range(3):
        w.close()
    assert w.ports == [1, 2, 3]
    w.wait()
    assert w.now == pytest.approx(0.075)
    assert w.ports == [1, 2, 3, 1]


def test_connect_timeout_without_reachable_node_names_the_reason() -> None:
    w = wire("bedrockish://h:1/?connect_timeout=2")
    number = w.call()
    while number not in w.finished:
        w.close(error=UnavailableError("connection refused"))
        w.wait()
    assert w.now == 2.0
    error = w.finished[number]
    assert isinstance(error, UnavailableError)
    assert "connection refused" in error.message
    late = w.call()
    w.wait(3.9)
    assert late not in w.finished, "each call has the whole time"


def test_call_behind_one_that_settles_is_given_up_in_time() -> None:
    w = wire("bedrockish://h:1/?connect_timeout=2")
    w.do(w.core.call(Step(0, Request("c0", ()), SETTLE), 60.0, w.now)[1])
    number = w.call(timeout_s=60.0)
    assert w.core.deadline() == 2.0
    w.wait()
    assert isinstance(w.finished[number], UnavailableError)


def test_protocol_mismatch_is_reported_as_protocol_mismatch() -> None:
    w = wire("bedrockish://h:1/?connect_timeout=2")
    number = w.call()
    while number not in w.finished:
        w.close(error=ProtocolMismatchError("versions 1 and 2"))
        w.wait()
    assert isinstance(w.finished[number], ProtocolMismatchError)


ERRORS = [
    (SqlError("x"), FailureMeaning.FINAL, FailureMeaning.AGAIN),
    (ConstraintError("x"), FailureMeaning.FINAL, FailureMeaning.AGAIN),
    (ConflictError("x"), FailureMeaning.FINAL, FailureMeaning.AGAIN),
    (DeadlineError("x"), FailureMeaning.FINAL, FailureMeaning.AGAIN),
    (TooLargeError("x"), FailureMeaning.FINAL, FailureMeaning.AGAIN),
    (UnavailableError("x"), FailureMeaning.ELSEWHERE, FailureMeaning.ELSEWHERE),
    (OutcomeUnknownError("x", command="c1"), FailureMeaning.LOST, FailureMeaning.LOST),
    (DamagedError("x"), FailureMeaning.LOST, FailureMeaning.LOST),
]


def test_definite_answer_is_final_after_repeated_sends() -> None:
    """If the data forbade a schema change, its second attempt gets the first attempt's final answer."""
    assert judge(ConstraintError("x", decided=True), lost=1, harmless=False) is FailureMeaning.FINAL


@pytest.mark.parametrize(("error", "at_first", "after_loss"), ERRORS)
def test_verdict_on_an_error_depends_on_whether_an_answer_was_lost(
    error: BedrockishError, at_first: FailureMeaning, after_loss: FailureMeaning
) -> None:
    assert judge(error, lost=0, harmless=False) is at_first
    assert judge(error, lost=1, harmless=False) is after_loss
    if after_loss is FailureMeaning.AGAIN:
        assert judge(error, lost=1, harmless=True) is FailureMeaning.FINAL


@pytest.mark.parametrize(("error", "at_first", "after_loss"), ERRORS)
def test_no_error_after_a_lost_answer_says_that_nothing_happened(
    error: BedrockishError, at_first: FailureMeaning, after_loss: FailureMeaning
) -> None:
    w = wire()
    number = w.call(timeout_s=5)
    w.open()
    w.close()
    asked = 0
    while number not in w.finished:
        if w.dials[-1].link not in {link for link, _ in w.sent}:
            w.open()
        if len(w.sent) > asked + 1:
            asked += 1
            w.reply(Failed(number, error), w.sent[-1][0])
        elif number not in w.finished:
            w.wait()
    outcome = w.finished[number]
    assert isinstance(outcome, OutcomeUnknownError)
    assert outcome.details["command"] == "c1"
    assert asked > 3
    assert {call.request.command for _, call in w.sent} == {"c1"}


def test_command_with_a_lost_answer_is_sent_at_once_to_the_next_node_with_strict_reads() -> None:
    w = wire()
    number = w.call()
    w.open()
    w.close()
    link = w.open()
    assert w.ports == [1, 2]
    first, second = (call for _, call in w.sent)
    assert isinstance(first, Execute)
    assert isinstance(second, Execute)
    assert (first.request.command, first.request.read) == ("c1", "session")
    assert (second.request.command, second.request.read) == ("c1", "strict")
    w.reply(Answered(number, FINE), link)
    assert w.finished[number] == Answered(number, FINE)


def test_request_is_not_sent_to_a_third_node_after_two_lost_links() -> None:
    """The text may crash nodes, so the client asks for the outcome without sending the text."""
    w = wire()
    number = w.call()
    w.open()
    w.close()
    w.open()
    w.close()
    link = w.open()
    assert w.ports == [1, 2, 3]
    asked = w.sent[-1][1]
    assert isinstance(asked, Step)
    assert (asked.op, asked.request.command, asked.request.statements) == ("settle", "c1", ())
    w.reply(Answered(number, Answer(NOTHING, Token())), link)
    outcome = w.finished[number]
    assert isinstance(outcome, UnavailableError)
    assert outcome.details["reason"] == "two_died"
    assert not outcome.retry
    assert "not sent to a third one" in outcome.message


def test_committed_result_is_returned_after_two_lost_links() -> None:
    w = wire()
    number = w.call()
    for _ in range(2):
        w.open()
        w.close()
    w.open()
    w.reply(Answered(number, FINE))
    assert w.finished[number] == Answered(number, FINE)


def test_read_fails_after_two_lost_links() -> None:
    w = wire()
    number = w.call("SELECT 1")
    for _ in range(2):
        w.open()
        w.close()
    outcome = w.finished[number]
    assert isinstance(outcome, UnavailableError)
    assert len(w.sent) == 2


def test_gracefully_stopped_nodes_do_not_count_as_lost() -> None:
    w = wire()
    number = w.call("SELECT 1")
    for _ in range(3):
        w.open()
        w.close(error=UnavailableError("B is stopping", reason="shutdown"))
    assert number not in w.finished


def test_nodes_at_their_limit_of_clients_do_not_count_as_lost() -> None:
    """Otherwise the client would believe that its request crashes nodes, and not ask a third node, which has room."""
    w = wire()
    number = w.call("INSERT INTO t VALUES (1)")
    for _ in range(2):
        w.open()
        w.close(error=UnavailableError("B has 75 open files", reason="refused"))
    w.open()
    assert w.ports == [1, 2, 3]
    assert number not in w.finished
    assert isinstance(w.sent[-1][1], Execute)
    w.close(error=UnavailableError("B has 75 open files", reason="refused"))
    assert w.ports == [1, 2, 3]  # all nodes are full: the client dials again after a pause
    assert number not in w.finished


def test_client_leaves_an_unavailable_node_and_waits_for_its_other_calls() -> None:
    w = wire()
    first, second = w.call(), w.call()
    old = w.open()
    w.reply(Failed(first, UnavailableError("no quorum")), old)
    assert (w.ports, w.hung_up) == ([1, 2], [])
    new = w.open()
    assert w.sent[-1][0] == new
    w.reply(Answered(second, FINE), old)
    assert isinstance(w.finished[second], Answered)
    assert w.hung_up == [old]
    w.reply(Answered(first, FINE), new)
    assert isinstance(w.finished[first], Answered)


def test_client_pauses_before_it_asks_the_only_node_again() -> None:
    w = wire("bedrockish://h:1")
    number = w.call()
    link = w.open()
    w.reply(Failed(number, UnavailableError("no quorum")), link)
    assert (len(w.sent), w.hung_up) == (1, [])
    w.wait()
    assert len(w.sent) == 2
    assert w.now == pytest.approx(0.075)


def test_error_at_the_deadline_depends_on_the_sent_calls() -> None:
    for sql, opened, expected in [
        ("INSERT INTO t VALUES (1)", True, OutcomeUnknownError),
        ("SELECT 1", True, DeadlineError),
        ("INSERT INTO t VALUES (1)", False, UnavailableError),
    ]:
        w = wire()
        number = w.call(sql, timeout_s=1)
        if opened:
            w.open()
        w.wait()
        assert w.now == 1
        assert type(w.finished[number]) is expected
        w.reply(Answered(number, FINE)) if opened else None  # too late, and ignored


def test_late_answer_still_counts_as_seen() -> None:
    w = wire()
    number = w.call(timeout_s=1)
    link = w.open()
    w.wait()
    w.reply(Answered(number, FINE), link)
    assert w.core.token == Token({"B": 7}, 9)
    w.call()
    assert w.sent[-1][1].request.token == Token({"B": 7}, 9)


def test_timeout_for_the_only_node_is_shorter_than_the_callers_remaining_time() -> None:
    w = wire("bedrockish://h:1")
    w.call(timeout_s=10)
    w.now = 2.0
    w.open()
    assert w.sent[-1][1].request.timeout_s == pytest.approx(6.0)


def test_node_without_quorum_leaves_time_for_other_nodes() -> None:
    w = wire()
    number = w.call(timeout_s=30)
    for patience in (2.5, 5.0, 10.0):
        w.open()
        assert w.sent[-1][1].request.timeout_s == patience
        w.now += patience
        w.reply(Failed(number, DeadlineError("no quorum")))
        if patience == 10:
            w.wait()
    assert w.ports == [1, 2, 3, 1]
    w.open()
    assert w.sent[-1][1].request.timeout_s == pytest.approx(30 - w.now - 2)
    w.now = 29.0
    w.reply(Failed(number, DeadlineError("no quorum")))
    assert isinstance(w.finished[number], DeadlineError)


def test_conflict_after_a_part_of_the_time_is_run_again_at_the_same_node() -> None:
    w = wire()
    number = w.call(timeout_s=10)
    w.open()
    w.now = 2.5
    w.reply(Failed(number, ConflictError("met B12")))
    w.wait()
    assert (w.ports, len(w.sent)) == ([1], 2)
    w.now = 8.5
    w.reply(Failed(number, ConflictError("met B13")))
    assert isinstance(w.finished[number], ConflictError)


def test_client_ends_a_link_after_a_malformed_or_unexpected_reply() -> None:
    for payload in (b"", b"\xff", encode_reply(Told(0, {})), encode_reply(Failed(0, SqlError("x")))):
        w = wire()
        number = w.call()
        link = w.open()
        w.do(w.core.received(link, payload, w.now))
        assert (w.hung_up, w.ports) == ([link], [1, 2])
        again = w.open()
        w.reply(Answered(number, FINE), again)
        assert isinstance(w.finished[number], Answered)


def test_answer_on_another_link_is_ignored() -> None:
    w = wire()
    number = w.call()
    first = w.open()
    w.close(first)
    w.open()
    w.reply(Answered(number, FINE), first)
    assert number not in w.finished


def test_calls_beyond_the_window_wait_until_a_call_ends() -> None:
    w = wire()
    numbers = [w.call() for _ in range(IN_FLIGHT_MAX + 1)]
    w.open()
    assert len(w.sent) == IN_FLIGHT_MAX
    w.reply(Answered(numbers[0], FINE))
    assert len(w.sent) == IN_FLIGHT_MAX + 1


def test_answer_costs_the_same_however_many_calls_wait_to_be_sent() -> None:
    w = wire()

    class Counted(dict[int, Any]):
        looks = 0

        def __getitem__(self, number: int) -> Any:
            Counted.looks += 1
            return super().__getitem__(number)

    w.core._calls = Counted(w.core._calls)
    numbers = [w.call() for _ in range(IN_FLIGHT_MAX + 1000)]
    w.open()
    Counted.looks = 0
    for number in numbers[:100]:
        w.reply(Answered(number, FINE))
    assert len(w.sent) == IN_FLIGHT_MAX + 100
    assert Counted.looks < 1000


def test_calls_of_a_lost_link_are_sent_before_calls_that_were_never_sent() -> None:
    w = wire()
    numbers = [w.call() for _ in range(IN_FLIGHT_MAX + 10)]
    w.open()
    w.close()
    w.open()
    assert [call.id for _, call in w.sent] == numbers[:IN_FLIGHT_MAX] * 2
    w.reply(Answered(numbers[0], FINE))
    assert w.sent[-1][1].id == numbers[IN_FLIGHT_MAX]


def test_closing_the_client_ends_every_open_call() -> None:
    w = wire()
    write = w.call()
    w.open()
    read = w.call("SELECT 1")
    number, effects = w.core.call(Ask(0, PING), 1, 0)
    w.do(effects)
    w.do(w.core.close())
    assert isinstance(w.finished[write], OutcomeUnknownError)
    assert isinstance(w.finished[read], ClientClosedError)
    assert isinstance(w.finished[number], ClientClosedError)
    assert w.hung_up == [w.dials[-1].link]


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT 1", True),
        ("  -- x\n /* y */ select 1", True),
        ("VALUES (1)", True),
        ("EXPLAIN DELETE FROM t", True),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", False),
        ("WITH x AS (SELECT 1) SELECT * FROM x", True),
        ("with recursive x(a) as (select 1 union select 2), y as (values (3)) values (1)", True),
        ("WITH replace AS (SELECT 1) DELETE FROM t", False),
        ("WITH [select] AS (SELECT 1) UPDATE t SET a = 1", False),
        ("INSERT INTO t VALUES (1)", False),
        ("SELECTED", False),
        ("PRAGMA user_version = 1", False),
        ("", False),
    ],
)
def test_statements_that_only_read_are_recognised(sql: str, reads: bool) -> None:
    assert only_reads(Request("c", (Statement(sql),))) is reads


def test_backoff_doubles_between_its_bounds() -> None:
    backoff = Backoff(100, 1000)
    assert [backoff.pause_s(n, lambda: 1.0) for n in (1, 2, 3, 4, 5, 99)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.pause_s(1, lambda: 0.0) == 0.05


def test_any_history_gives_each_call_exactly_one_true_outcome() -> None:
    """Any events in any order: one outcome per call, and "did not happen" only if no send is open."""
    lost = sum(live_through(seed) for seed in range(100))
    assert lost > 200, "histories in which nothing is lost show nothing"


def live_through(seed: int) -> int:
    """Play one history drawn from a seed; return how many calls lost an answer in it."""
    w, luck = wire(), random.Random(seed)
    unanswered: set[int] = set()  # calls that a node received and never answered
    numbers: list[int] = []
    replied: set[tuple[int, int]] = set()
    dead: set[int] = set()
    for _ in range(80):
        asks = [(link, call.id) for link, call in w.sent]
        waiting = [ask for ask in asks if ask not in replied and ask[0] not in dead and ask[0] not in w.hung_up]
        newest = w.dials[-1].link if w.dials else None
        match luck.choice(["call", "open", "open", "close", "answer", "fail", "fail", "wait"]):
            case "call":
                numbers.append(w.call(timeout_s=3))
            case "open" if newest is not None and newest not in dead:
                w.open()
            case "close" if newest is not None:
                dead.add(newest)
                w.close()
            case "answer" if waiting:
                replied.add(ask := luck.choice(waiting))
                w.reply(Answered(ask[1], FINE), ask[0])
            case "fail" if waiting:
                replied.add(ask := luck.choice(waiting))
                error = luck.choice(ERRORS)[0]
                if judge(error, lost=0, harmless=False) is FailureMeaning.LOST:
                    unanswered.add(ask[1])
                w.reply(Failed(ask[1], error), ask[0])
            case "wait" if w.core.deadline() < math.inf:
                w.wait(min(w.core.deadline(), w.now + luck.random()))
            case _:
                pass
        unanswered.update(number for link, number in waiting if link in dead)
    while w.core.deadline() < math.inf:
        w.wait()
    assert set(w.finished) == set(numbers)
    for number in unanswered:
        assert isinstance(w.finished[number], Answered | OutcomeUnknownError), f"seed {seed}, call {number}"
    return len(unanswered)


def test_session_stays_bound_to_its_cluster() -> None:
    """A node of another cluster may answer at a known address: the session neither writes there nor uses its token
    there.
    """
    this = wire("bedrockish://h1:1,h2:2/?connect_timeout=60")
    call = this.call()
    this.open()  # a node of a release without cluster ids
    this.close()
    this.open("one")
    this.close()
    this.now += 1.0
    this.do(this.core.woken(this.now))
    elsewhere = this.open("two")
    assert this.hung_up == [elsewhere]
    assert isinstance(this.core.route.error, ProtocolMismatchError)
    this.now += 1.0
    this.do(this.core.woken(this.now))
    home = this.open("one")
    this.reply(Answered(call, FINE))
    assert isinstance(this.finished[call], Answered)
    assert this.hung_up == [elsewhere]
    assert home in this.core._links


def end_at_another_cluster(this: Wire, call: int) -> None:
    """Let each dial reach a node of another cluster; the call ends with an error that says so."""
    while call not in this.finished and this.now < 10.0:
        this.now += 0.1
        this.do(this.core.woken(this.now))
        if this.dials[-1].link not in this.hung_up:
            this.open("two")
    error = this.finished[call]
    assert isinstance(error, ProtocolMismatchError)
    assert "another cluster" in error.message


def test_call_fails_when_all_addresses_belong_to_another_cluster() -> None:
    this = wire("bedrockish://h1:1/?connect_timeout=2")
    this.call()
    this.open("one")
    this.reply(Answered(1, FINE))
    this.close()
    call = this.call(timeout_s=5.0)
    end_at_another_cluster(this, call)


def test_read_whose_link_died_says_that_the_node_is_of_another_cluster() -> None:
    """The client sent the read before it noticed the end of the link.

    The next HELLO explains more than the broken link.
    """
    this = wire("bedrockish://h1:1/?connect_timeout=2")
    this.call()
    this.open("one")
    this.reply(Answered(1, FINE))
    call = this.call("SELECT 1", timeout_s=5.0)
    this.close()
    end_at_another_cluster(this, call)


def test_a_session_that_has_seen_and_sent_nothing_may_go_to_another_cluster() -> None:
    """A node with an empty file may found its own cluster, and then join the others before a client has used it."""
    this = wire("bedrockish://h1:1/?connect_timeout=60")
    call = this.call()
    this.open("one")
    this.reply(Failed(call, UnavailableError("not yet")))
    this.close()
    while not this.dials[-1].link > 2:
        this.now += 1.0
        this.do(this.core.woken(this.now))
    this.open("two")
    assert this.hung_up == []
    assert this.core.cluster_id == "two"


def test_token_of_a_session_is_the_same_object_while_no_commit_is_new() -> None:
    """The token is decoded and encoded once, not for each call."""
    w = wire()

    def seen(token: Token) -> Token:
        number = w.call("SELECT 1")
        if len(w.dials) == 1 and not w.sent:
            w.open()
        w.reply(Answered(number, Answer(FINE.results, token)))
        return w.core.token

    first = seen(Token({"B": 7}, 9))
    assert first == Token({"B": 7}, 9)
    assert seen(Token({"B": 7}, 9)) is first
    assert seen(Token({"B": 7}, 8)) is first
    assert seen(Token({"A": 1}, 8)) == Token({"A": 1, "B": 7}, 9)
