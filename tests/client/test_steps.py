"""Interactive transactions in the client without sockets: one link, and a COMMIT whose answer may be lost."""

import pytest

from bedrockish.api.requests import NOTHING, Answer, Request, Result, Statement, Token, encode_results
from bedrockish.api.wire import (
    BEGIN,
    CLOSE,
    COMMIT,
    FETCH,
    ROLLBACK,
    SETTLE,
    STATEMENTS,
    STREAM,
    Answered,
    Failed,
    Step,
    decode_call,
    decode_reply,
    encode_call,
    encode_reply,
)
from bedrockish.errors import (
    BedrockishError,
    ConflictError,
    ConstraintError,
    DeadlineError,
    OutcomeUnknownError,
    UnavailableError,
)
from bedrockish.sqltext.transaction_control import Control, parse_control
from tests.client.test_core import Wire, wire

DONE = Answer(encode_results([Result((), [])]), Token({"A": 1}, 5), ("A", 1))
EMPTY = Answer(NOTHING, Token({"B": 1}, 6), ("B", 1))


def step(w: Wire, op: str, timeout_s: float = 10.0) -> int:
    statements = (Statement("SELECT 1"),) if op in (STATEMENTS, STREAM) else ()
    number, effects = w.core.call(Step(0, Request("tx", statements), op), timeout_s, w.now)
    w.do(effects)
    return number


FIRST = (Statement("INSERT INTO t VALUES (1)"),)


def first(w: Wire, timeout_s: float = 10.0) -> int:
    """Begin a transaction with its first statement."""
    number, effects = w.core.call(Step(0, Request("tx", FIRST), BEGIN), timeout_s, w.now)
    w.do(effects)
    return number


def begun() -> tuple[Wire, int]:
    w = wire()
    number = step(w, BEGIN)
    link = w.open()
    w.reply(Answered(number, Answer(NOTHING, Token())))
    return w, link


def test_all_steps_of_a_transaction_use_the_link_of_its_begin() -> None:
    """The client may use another node for all other calls."""
    w, link = begun()
    other = w.call()
    w.reply(Failed(other, UnavailableError("no quorum")), link)
    assert len(w.dials) == 2
    second = w.open()
    number = step(w, STATEMENTS)
    assert [(at, call.op) for at, call in w.sent if isinstance(call, Step)][-1] == (link, STATEMENTS)
    assert link not in w.hung_up
    w.reply(Answered(number, DONE), link)
    commit = step(w, COMMIT)
    w.reply(Answered(commit, DONE), link)
    assert isinstance(w.finished[commit], Answered)
    assert link in w.hung_up
    assert second not in w.hung_up


def test_token_is_sent_with_begin_and_not_with_each_step() -> None:
    w, link = begun()
    w.core.merge_token(Token({"A": 7}, 9))
    step(w, STATEMENTS)
    assert w.sent[-1][1].request.token == Token()
    step(w, COMMIT)
    assert w.sent[-1][1].request.token == Token()
    w.close(link)  # the client asks any other node for the outcome, which must have seen the token
    w.open()
    assert (w.sent[-1][1].op, w.sent[-1][1].request.token) == (SETTLE, Token({"A": 7}, 9))
    first(w)
    assert (w.sent[-1][1].op, w.sent[-1][1].request.token) == (BEGIN, Token({"A": 7}, 9))


def test_a_lost_statement_is_not_sent_again() -> None:
    """The transaction was only in the memory of the lost node."""
    w, link = begun()
    number = step(w, STATEMENTS)
    w.close(link)
    error = w.finished[number]
    assert isinstance(error, UnavailableError)
    assert error.retry
    assert "did not happen" in error.message
    later = step(w, COMMIT)
    assert isinstance(w.finished[later], UnavailableError)
    assert [call.op for _, call in w.sent] == [BEGIN, STATEMENTS]


def test_a_first_statement_that_fails_leaves_a_transaction_open() -> None:
    """The node reports that the transaction is open, so its next steps go there. An error of BEGIN itself opens
    nothing.
    """
    for details in ({"begun": True}, {}):
        w = wire()
        number, link = first(w), w.open()
        w.reply(Failed(number, ConstraintError("taken", **details)), link)
        assert isinstance(w.finished[number], ConstraintError)
        later = step(w, STATEMENTS)
        assert (w.sent[-1][1].op == STATEMENTS) is bool(details)
        assert isinstance(w.finished.get(later), UnavailableError) is not bool(details)


def test_a_lost_first_statement_is_sent_again_elsewhere_and_to_no_third_node() -> None:
    """The client has seen no result, so it may send the statement again; after two lost links it does not."""
    w = wire()
    number, link = first(w), w.open()
    w.close(link)
    second = w.open()
    assert [(at, call.op, call.request.statements) for at, call in w.sent] == [
        (link, BEGIN, FIRST),
        (second, BEGIN, FIRST),
    ]
    w.close(second)
    error = w.finished[number]
    assert isinstance(error, UnavailableError)
    assert error.details["reason"] == "two_died"
    assert not error.retry, "who runs the transaction again would end two more"


@pytest.mark.parametrize("how", ["cancelled", "late", "interrupted"])
def test_abandoned_transactions_and_streams_end_at_their_node(how: str) -> None:
    """An abandoned transaction or stream ends at its node; its link is not kept for the answer."""
    for beginning, end in ((first, ROLLBACK), (lambda w, s=10.0: step(w, STREAM, s), CLOSE)):
        w = wire()
        number, link = beginning(w, 1.0), w.open()
        match how:
            case "cancelled":
                w.do(w.core.cancel(number, w.now))
            case "late":
                w.wait()
            case "interrupted":
                w.do(w.core.interrupt(w.now))
        at, call = w.sent[-1]
        assert (at, call.op, call.request.statements) == (link, end, ())
        assert w.core.has_open
        while w.core.has_open:
            w.wait()
        assert w.sent[-1] == (at, call)


@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_commit_is_settled_at_another_node(happened: bool) -> None:
    """The client never sends a COMMIT again. It requests the outcome, and if necessary prevents the commit."""
    w, link = begun()
    number = step(w, COMMIT)
    w.close(link)
    assert number not in w.finished
    second = w.open()
    assert [(at, call.op) for at, call in w.sent][-1] == (second, SETTLE)
    w.reply(Failed(number, ConflictError("busy")))
    assert number not in w.finished, "an error proves nothing about the COMMIT that was lost"
    w.wait()
    w.reply(Answered(number, DONE if happened else EMPTY), second)
    outcome = w.finished[number]
    if happened:
        assert isinstance(outcome, Answered)
        assert outcome.answer.place == ("A", 1)
    else:
        assert isinstance(outcome, UnavailableError)
        assert outcome.details["command"] == "tx"


def test_commit_that_no_node_can_decide_has_an_unknown_outcome() -> None:
    """The node does not know the outcome, and the client's time ends before another node answers."""
    w, link = begun()
    number = step(w, COMMIT, timeout_s=3.0)
    w.reply(Failed(number, OutcomeUnknownError("no majority", command="tx")), link)
    assert number not in w.finished
    for _ in range(50):
        if number in w.finished:
            break
        w.wait()
    assert isinstance(w.finished[number], OutcomeUnknownError)


def test_a_refused_commit_did_not_happen() -> None:
    """A deferred constraint leaves the transaction open, a conflict does not."""
    w, link = begun()
    number = step(w, COMMIT)
    w.reply(Failed(number, ConstraintError("still broken")), link)
    assert isinstance(w.finished[number], ConstraintError)
    number = step(w, COMMIT)
    w.reply(Failed(number, ConflictError("lost")), link)
    assert isinstance(w.finished[number], ConflictError)
    assert isinstance(w.finished[step(w, ROLLBACK)], UnavailableError)


def test_statement_without_an_answer_in_time_fails() -> None:
    w, _link = begun()
    number = step(w, STATEMENTS, timeout_s=1.0)
    w.wait()
    assert isinstance(w.finished[number], DeadlineError)


@pytest.mark.parametrize(
    ("sql", "kind", "name"),
    [
        ("BEGIN", "BEGIN", ""),
        (" -- why\nbegin /* now */ immediate transaction ;", "BEGIN", ""),
        ("END TRANSACTION", "COMMIT", ""),
        ("commit;", "COMMIT", ""),
        ("ROLLBACK", "ROLLBACK", ""),
        ("rollback to a", "ROLLBACK TO", "a"),
        ("ROLLBACK TRANSACTION TO SAVEPOINT [a b]", "ROLLBACK TO", "a b"),
        ('SAVEPOINT "a""b"', "SAVEPOINT", 'a"b'),
        ("RELEASE SAVEPOINT 'a'", "RELEASE", "a"),
        ("release a ; -- done", "RELEASE", "a"),
        ("Commit Transaction", "COMMIT", ""),
        ("sAvepoint é", "SAVEPOINT", "é"),
        ("\tend", "COMMIT", ""),
        ("BEGIN TRANSACTION [my name]", "BEGIN", ""),
        ("begin immediate transaction 'foo';", "BEGIN", ""),
        ("END TRANSACTION foo", "COMMIT", ""),
        ("ROLLBACK TRANSACTION foo", "ROLLBACK", ""),
        ("ROLLBACK TRANSACTION foo TO SAVEPOINT a", "ROLLBACK TO", "a"),
    ],
)
def test_control_statements_are_recognised(sql: str, kind: str, name: str) -> None:
    assert parse_control(sql) == Control(kind, name, writes="immediate" in sql.lower())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "BEGIN; SELECT 1",
        "SAVEPOINT",
        "RELEASE a b",
        "beginning",
        "COMMIT TO a",
        "BEGIN foo",
        "BEGIN TRANSACTION foo bar",
        "COMMIT TRANSACTION TO a",
        "SAVEPOINT transaction a",
        "INSERT INTO b SELECT 1",
        "",
        "B",
        "?",
        "é",
    ],
)
def test_statements_without_transaction_control_are_unchanged(sql: str) -> None:
    assert parse_control(sql) is None


def test_transaction_errors_keep_their_class_over_the_wire() -> None:
    """Each error of a transaction arrives as a bedrockish error of its own class."""
    w, link = begun()
    number = step(w, STATEMENTS)
    w.reply(Failed(number, ConflictError("lost", table="table t", key="00", other="1A", leader="A")), link)
    error = w.finished[number]
    assert isinstance(error, BedrockishError)
    assert error.details["leader"] == "A"


MORE = Answer(encode_results([Result(("x",), [])]), Token({"A": 1}, 5), more=True)
LAST = Answer(encode_results([Result(("x",), [(1,)])]), Token())


def streamed(w: Wire) -> int:
    number = step(w, STREAM)
    link = w.open()
    w.reply(Answered(number, MORE))
    return link


def steps_of(w: Wire) -> list[tuple[int, str]]:
    return [(at, call.op) for at, call in w.sent if isinstance(call, Step)]


def test_a_stream_stays_on_its_link_until_its_last_row() -> None:
    """The link stays open for the stream, although the client's other calls go to another node."""
    w = wire()
    link = streamed(w)
    w.reply(Failed(w.call(), UnavailableError("no quorum")), link)
    w.open()
    number = step(w, FETCH)
    w.reply(Answered(number, MORE), link)
    assert link not in w.hung_up
    number = step(w, FETCH)
    assert steps_of(w)[-1] == (link, FETCH)
    w.reply(Answered(number, LAST), link)
    assert isinstance(w.finished[number], Answered)
    assert link in w.hung_up


def test_lost_opening_of_a_stream_is_repeated_at_another_node_and_a_lost_batch_is_not() -> None:
    """A lost opening is done again at the next node; a lost batch is an error."""
    w = wire()
    number = step(w, STREAM)
    w.close(w.open())
    link = w.open()
    assert [op for _, op in steps_of(w)] == [STREAM, STREAM]
    w.reply(Answered(number, MORE), link)
    number = step(w, FETCH)
    w.close(link)
    error = w.finished[number]
    assert isinstance(error, UnavailableError)
    assert "the result was read at" in error.message
    number = step(w, FETCH)
    assert isinstance(w.finished[number], UnavailableError)


def test_cancelled_opening_of_a_stream_is_closed_at_its_node() -> None:
    """The cancelled caller can neither read nor close it."""
    w = wire()
    number = step(w, STREAM)
    link = w.open()
    w.do(w.core.cancel(number, w.now))
    assert steps_of(w) == [(link, STREAM), (link, CLOSE)]


@pytest.mark.parametrize("op", [BEGIN, STREAM])
def test_stream_opened_for_a_cancelled_caller_is_closed_once(op: str) -> None:
    """The answer arrived as the caller was cancelled: the client closes that stream once, and no later one."""
    w = wire()
    number = step(w, op)
    link = w.open()
    w.reply(Answered(number, MORE), link)
    w.do(w.core.cancel(number, w.now))
    end = ROLLBACK if op == BEGIN else CLOSE
    assert steps_of(w) == [(link, op), (link, end)]
    w.do(w.core.cancel(number, w.now))
    assert steps_of(w) == [(link, op), (link, end)]


def test_cancelled_later_call_does_not_close_an_earlier_stream() -> None:
    """The program still holds the earlier stream, and closes it itself."""
    w = wire()
    link = streamed(w)
    number = step(w, FETCH)
    w.reply(Answered(number, MORE), link)
    w.do(w.core.cancel(number, w.now))
    assert [op for _, op in steps_of(w)] == [STREAM, FETCH]


def test_a_failed_batch_ends_the_stream() -> None:
    """The client can use the link for other calls."""
    w = wire()
    link = streamed(w)
    w.reply(Failed(w.call(), UnavailableError("no quorum")), link)
    w.open()
    number = step(w, FETCH)
    w.reply(Failed(number, ConstraintError("no row")), link)
    assert isinstance(w.finished[number], ConstraintError)
    assert link in w.hung_up


def test_stream_messages_survive_encoding() -> None:
    """Decoding an encoded call or reply returns the same call or reply."""
    asked = Step(3, Request("s", (Statement("SELECT 1"),)), STREAM)
    assert decode_call(encode_call(asked)) == Step(3, Request("s", (Statement("SELECT 1", None),)), STREAM)
    for reply in (Answered(3, MORE), Answered(3, LAST)):
        assert decode_reply(encode_reply(reply)) == reply


def test_read_only_transaction_has_a_known_outcome() -> None:
    """The journal has no entry of a read-only transaction that could settle it; a writing transaction has one."""
    w = wire()
    number, link = step(w, BEGIN), w.open()
    w.reply(Answered(number, Answer(NOTHING, Token())), link)
    assert not w.core.has_only_read("tx")
    w.reply(Answered(step(w, COMMIT), Answer(NOTHING, Token({"A": 1}, 5))), link)
    assert w.core.has_only_read("tx")
    for place, reads in ((("A", 2), False), (None, True)):
        name = f"c{place}"
        number, effects = w.core.call(Request(name, (Statement("UPDATE t SET a = 1"),)), 10.0, w.now)
        w.do(effects)
        w.reply(Answered(number, Answer(encode_results([Result((), [], 0)]), Token(), place)), w.sent[-1][0])
        assert w.core.has_only_read(name) is reads


def test_conflict_of_a_transaction_executed_on_the_file_is_final() -> None:
    """No other node can execute the transaction again, so the client does not try, even with time and nodes left."""
    w = wire()
    assert len(w.core.route.addresses) > 1
    number, effects = w.core.call(Step(0, Request("tx", ()), COMMIT, b"prepared"), 60.0, w.now)
    w.do(effects)
    w.open()
    w.reply(Failed(number, ConflictError("lost", table="table t")))
    outcome = w.finished[number]
    assert isinstance(outcome, ConflictError)
    assert outcome.details["table"] == "table t"
    assert [call.op for _, call in w.sent if isinstance(call, Step)] == [COMMIT]
