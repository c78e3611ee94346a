"""The cluster's secret: who knows it is let in, whoever does not is not, and old answers prove nothing."""

from collections.abc import Callable

import trio
import trio.testing

from net.errors import RefusedError
from net.events import Hello
from net.handshake import accept, dial_on
from net.limits import Limits
from net.secret import Secret

A, B = Hello("A", "shop", to="B"), Hello("B", "shop", to="A")


def counter() -> Callable[[int], bytes]:
    """Return a source of bytes that never says the same twice."""
    number = 0

    def draw(count: int) -> bytes:
        nonlocal number
        number += 1
        return number.to_bytes(count, "big")

    return draw


def test_a_proof_is_for_one_pair_one_secret_and_one_question() -> None:
    ours, other = Secret("x" * 16, counter()), Secret("y" * 16, counter())
    question = ours.prove(A)
    answer = ours.prove(B, question)
    assert ours.is_proven(question)
    assert ours.is_proven(answer, question)
    assert not ours.is_proven(A)
    assert not other.is_proven(question)
    assert not ours.is_proven(answer, ours.prove(A))  # a later question
    assert not ours.is_proven(answer)
    for changed in (Hello("C", "shop", to="B"), Hello("A", "shop", to="C"), Hello("A", "x", to="B")):
        assert not ours.is_proven(Hello(changed.node, changed.cluster, "peer", changed.to, question.info))
    assert "x" * 16 not in repr(question.info)
    assert not ours.is_proven(Hello("A", "shop", to="B", info={"nonce": 7, "proof": "text"}))


async def shake(dialler: Secret | None, accepter: Secret | None) -> tuple[str, str]:
    """Let two ends shake hands; return what each of them says went wrong."""
    said = {}
    here, there = trio.testing.memory_stream_pair()

    async def answer() -> None:
        try:
            await accept(there, Hello("B", "shop"), lambda remote: B, Limits(goodbye_seconds=0.2), None, accepter)
        except RefusedError as error:
            said["accepter"] = str(error)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            try:
                await dial_on(here, A, Limits(goodbye_seconds=0.2), dialler)
            except RefusedError as error:
                said["dialler"] = str(error)
                await here.aclose()
    return said.get("dialler", ""), said.get("accepter", "")


async def test_both_ends_must_know_it() -> None:
    secret = Secret("x" * 16, counter())
    assert await shake(secret, Secret("x" * 16, counter())) == ("", "")
    dialler, accepter = await shake(None, secret)
    assert "'A' has no cluster secret" in accepter
    assert "'A' has no cluster secret" in dialler
    dialler, accepter = await shake(Secret("y" * 16, counter()), secret)
    assert "'A' has another cluster secret" in accepter
    dialler, accepter = await shake(secret, None)
    assert "'B' has no cluster secret" in dialler
    assert accepter == ""


async def test_a_client_needs_none() -> None:
    """Whether a client comes in is the gate's decision."""
    here, there = trio.testing.memory_stream_pair()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                accept, there, Hello("B", "shop"), lambda remote: B, Limits(), None, Secret("x" * 16, counter())
            )
            await dial_on(here, Hello("shell", None, "client"), Limits())
            nursery.cancel_scope.cancel()
