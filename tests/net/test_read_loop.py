"""One task reads all sockets of a node, and reads all messages of one moment before any is handled."""

import socket
from collections.abc import Iterator

import pytest
import trio

from bedrockish_net.read_loop import ReadLoop


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    found = [socket.socketpair() for _ in range(3)]
    yield found
    for pair in found:
        for end in pair:
            end.close()


async def test_read_loop_reads_all_ready_links_between_before_and_after(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    seen: list[str] = []
    loop = ReadLoop(lambda *_: None, lambda: seen.append("before"), lambda: seen.append("after"))
    for number, (_, end) in enumerate(pairs):
        loop.add(end.fileno(), lambda _now, end=end, number=number: seen.append(f"{number} {end.recv(9).decode()}"))  # type: ignore[misc]
    for near, _ in pairs:
        near.send(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        with trio.fail_after(5):
            while "after" not in seen:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert seen[0] == "before"
        assert sorted(seen[1:4]) == ["0 x", "1 x", "2 x"]
        assert seen[4:] == ["after"]
        loop.remove(pairs[0][1].fileno())
        pairs[0][0].send(b"unread")
        pairs[1][0].send(b"y")
        with trio.fail_after(5):
            while seen.count("after") < 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert seen[5:] == ["before", "1 y", "after"]
        nursery.cancel_scope.cancel()


async def test_reader_removed_by_another_in_the_same_turn_is_not_called(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    called: list[int] = []
    loop = ReadLoop(lambda *_: None)
    files = [end.fileno() for _, end in pairs]

    def read(file: int) -> None:
        called.append(file)
        for other in files:  # as a link that is replaced by a newer one
            loop.remove(other)

    for file in files:
        loop.add(file, lambda _now, file=file: read(file))  # type: ignore[misc]
    for near, _ in pairs:
        near.send(b"x")
    with trio.move_on_after(0.1):
        await loop.run()
    assert len(called) == 1


async def test_failing_reader_does_not_affect_others(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    faults: list[tuple[str, Exception]] = []
    got: list[bytes] = []
    loop = ReadLoop(lambda what, error: faults.append((what, error)))
    bad, good = pairs[0][1], pairs[1][1]

    def fail(_now: float) -> None:
        raise ZeroDivisionError

    loop.add(bad.fileno(), fail)
    loop.add(good.fileno(), lambda _now: got.append(good.recv(9)))
    for near, _ in pairs:
        near.send(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        with trio.fail_after(5):
            while not (faults and got):  # noqa: ASYNC110
                await trio.sleep(0.001)
        await trio.sleep(0.02)  # the failed reader's socket still has bytes, and is not read again
        nursery.cancel_scope.cancel()
    assert [(what, type(error)) for what, error in faults] == [("reading a link", ZeroDivisionError)]
    assert got == [b"x"]


async def test_nothing_is_added_to_a_loop_that_has_ended(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    loop = ReadLoop(lambda *_: None)
    with trio.move_on_after(0.01):
        await loop.run()
    loop.add(pairs[0][1].fileno(), lambda _now: None)
    loop.remove(pairs[0][1].fileno())
