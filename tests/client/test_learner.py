"""The client's use of a learner, which answers a write with the addresses of the voters."""

from bedrockish.api.requests import Request, Statement
from bedrockish.api.wire import BEGIN, STATEMENTS, Answered, Failed, Step
from bedrockish.errors import LearnerError
from tests.client.test_core import FINE, wire


def test_client_moves_from_a_learner_to_a_voter_for_a_write() -> None:
    """The client knows one node, a learner; it moves to a voter and stays there."""
    w = wire("bedrockish://h:1")
    number = w.call()
    w.open()
    w.reply(Failed(number, LearnerError("only reads", voters={"A": "h:2", "X": "nonsense::", "B": "h:3"})))
    assert (w.ports, w.finished) == ([1, 2], {})
    w.close()  # the named node is absent
    assert w.ports == [1, 2, 3]
    w.reply(Answered(number, FINE), w.open())
    assert w.finished[number] == Answered(number, FINE)
    again = w.call()
    assert w.ports == [1, 2, 3]
    w.reply(Answered(again, FINE))
    assert again in w.finished


def test_learner_without_reachable_voters_is_named_in_the_error() -> None:
    w = wire("bedrockish://h:1")
    number = w.call(timeout_s=3.0)
    asked = 0
    while number not in w.finished:
        if len(w.dials) > asked:
            asked = len(w.dials)
            if w.ports[-1] == 1:
                w.reply(Failed(number, LearnerError("only reads", voters={"A": "h:2"})), w.open())
            else:
                w.close()
        else:
            w.wait()
    error = w.finished[number]
    assert isinstance(error, LearnerError)
    assert "only reads" in error.message


def test_an_open_transaction_that_ends_at_a_learner_is_run_again_at_a_voter() -> None:
    w = wire("bedrockish://h:1")
    begun, effects = w.core.call(Step(0, Request("t1", ()), BEGIN), 10.0, w.now)
    w.do(effects)
    w.reply(Answered(begun, FINE), w.open())
    number, effects = w.core.call(
        Step(0, Request("t1", (Statement("INSERT INTO t VALUES (1)"),)), STATEMENTS), 10.0, w.now
    )
    w.do(effects)
    w.reply(Failed(number, LearnerError("only reads", voters={"A": "h:2"})))
    assert isinstance(w.finished[number], LearnerError)
    assert not w.core.has_open
    w.do(w.core.call(Step(0, Request("t2", ()), BEGIN), 10.0, w.now)[1])
    assert w.ports == [1, 2]
