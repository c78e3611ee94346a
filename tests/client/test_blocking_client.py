"""The blocking client, from threads, against a scripted node that runs in a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

import bedrockish
from bedrockish.api.requests import Answer, Request, open_token
from bedrockish.errors import ClientClosedError, ConfigError, ConstraintError, OutcomeUnknownError, UnavailableError
from tests.client.scripted import ScriptedNode, answer, running


@contextmanager
def in_background(node: ScriptedNode) -> Iterator[str]:
    started = threading.Event()
    found: list[str] = []
    entry: list[trio.lowlevel.TrioToken] = []
    stop = trio.Event()

    async def main() -> None:
        async with running(node) as url:
            found.append(url)
            entry.append(trio.lowlevel.current_trio_token())
            started.set()
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert started.wait(60)
    try:
        yield found[0]
    finally:
        entry[0].run_sync_soon(stop.set)
        thread.join(60)


async def echo(request: Request) -> Answer:
    params = request.statements[0].params
    assert isinstance(params, list)
    return answer(tuple(params), statements=len(request.statements))


def test_threads_share_a_connection_and_each_gets_its_own_answer() -> None:
    node = ScriptedNode(script=[echo])
    wrong: list[int] = []
    with in_background(node) as url, bedrockish.connect(url) as connection:

        def work(first: int) -> None:
            for number in range(first, first + 20):
                if connection.execute("SELECT ?", [number]).value() != number:
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(node.requests) == 80
    assert len(node.links) == 1


def test_blocking_client_raises_the_errors_of_the_node() -> None:
    node = ScriptedNode()
    node.script = [node.refuse(ConstraintError("UNIQUE constraint failed: t.x")), node.hang]
    with in_background(node) as url, bedrockish.connect(url) as connection:
        with pytest.raises(ConstraintError):
            connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(OutcomeUnknownError):
            connection.execute("INSERT INTO t VALUES (1)", timeout=0.05)


def test_closed_connection_raises_client_closed_error() -> None:
    with in_background(ScriptedNode()) as url:
        connection = bedrockish.connect(url)
        assert not connection.closed
        connection.close()
        connection.close()
        assert connection.closed
        with pytest.raises(ClientClosedError):
            connection.execute("SELECT 1")


def test_closing_ends_the_calls_of_other_threads() -> None:
    node = ScriptedNode()
    arrived = threading.Event()

    async def hang(request: Request) -> Answer:
        arrived.set()
        return await node.hang(request)

    node.script = [hang]
    caught: list[BaseException] = []
    with in_background(node) as url:
        connection = bedrockish.connect(url)

        def work() -> None:
            try:
                connection.execute("INSERT INTO t VALUES (1)")
            except Exception as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert arrived.wait(60)
        connection.close()
        thread.join(60)
    assert [type(error) for error in caught] == [OutcomeUnknownError]


def test_token_can_be_passed_from_one_connection_to_another() -> None:
    with in_background(ScriptedNode()) as url, bedrockish.connect(url) as first, bedrockish.connect(url) as second:
        first.transact(["INSERT INTO t VALUES (1)"])
        second.token = first.token
        assert open_token(second.token)[0].vector == {"A": 1}


def test_connecting_reports_bad_urls_and_missing_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BEDROCKISH_URL", raising=False)
    with pytest.raises(ConfigError, match="BEDROCKISH_URL"):
        bedrockish.connect()
    with pytest.raises(UnavailableError):
        bedrockish.connect("bedrockish://127.0.0.1:1/?connect_timeout=0.05")


def test_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_background(ScriptedNode()) as url:
        monkeypatch.setenv("BEDROCKISH_URL", url)
        with bedrockish.connect() as connection:
            assert connection.status()["node"] == "A"
