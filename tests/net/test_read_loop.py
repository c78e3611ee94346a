"""One task reads all sockets of a node, and reads all messages of one moment before any is handled."""

import socket
from collections.abc import Iterator

import pytest
import trio

from bedrockish_net.read_loop import Courtesy, ReadLoop, Ready


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

    def after() -> bool:
        seen.append("after")
        return True

    loop = ReadLoop(lambda *_: None, lambda: seen.append("before"), after)
    for number, (_, end) in enumerate(pairs):
        loop.add(end.fileno(), lambda _now, end=end, number=number: seen.append(f"{number} {end.recv(9).decode()}"))  # type: ignore[misc]
    for near, _ in pairs:
        near.send(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        with trio.fail_after(60):
            while "after" not in seen:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert seen[0] == "before"
        assert sorted(seen[1:4]) == ["0 x", "1 x", "2 x"]
        assert seen[4:] == ["after"]
        loop.remove(pairs[0][1].fileno())
        pairs[0][0].send(b"unread")
        pairs[1][0].send(b"y")
        with trio.fail_after(60):
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
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        with trio.fail_after(60):
            while not called:  # noqa: ASYNC110
                await trio.sleep(0.001)
        await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
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
        with trio.fail_after(60):
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


class Processor:
    """A clock, and processes that send to some sockets while they have the processor for a time."""

    def __init__(self, keeps_s: float, sockets: int) -> None:
        self.now, self.calls, self.searches = 0.0, 0, 0
        self.keeps_s, self._sockets = keeps_s, sockets
        self.courtesy = Courtesy(lambda: self.now, self._run_others)

    def _run_others(self) -> None:
        self.calls += 1
        self.now += self.keeps_s

    def _find(self) -> Ready:
        self.searches += 1
        return [(file, 1) for file in range(self._sockets)]

    def give_way(self, seconds: float) -> None:
        """Give way as often as a node that works 100 microseconds before each call."""
        end = self.now + seconds
        while self.now < end:
            self.now += 100e-6
            self.courtesy.give_way(self._find)


def test_node_gives_way_each_time_while_programs_use_the_time_to_send() -> None:
    processor = Processor(keeps_s=0.001, sockets=5)
    processor.give_way(1)
    assert processor.calls == processor.searches == pytest.approx(1 / 0.0011, abs=1)


def test_node_loses_two_percent_to_a_program_that_computes() -> None:
    processor = Processor(keeps_s=0.004, sockets=2)
    processor.give_way(10)
    assert processor.calls * processor.keeps_s == pytest.approx(0.2, rel=0.05)


def test_node_gives_way_at_most_500_times_a_second_if_no_process_waits() -> None:
    processor = Processor(keeps_s=1e-6, sockets=0)
    processor.give_way(1)
    assert 400 <= processor.calls == processor.searches <= 500


def test_node_gives_way_again_after_a_pause() -> None:
    processor = Processor(keeps_s=0.004, sockets=0)
    processor.give_way(1)
    processor.keeps_s, processor._sockets, before = 0.001, 5, processor.calls
    processor.give_way(1)
    assert processor.calls - before > 500


@pytest.mark.parametrize("is_done", [True, False])
async def test_read_loop_reads_input_of_its_courtesy_before_other_tasks_unless_work_is_left(
    pairs: list[tuple[socket.socket, socket.socket]], is_done: bool
) -> None:
    (near, end), seen = pairs[0], list[str]()

    def send_again() -> None:
        if len(seen) == 1:
            near.send(b"second")

    loop = ReadLoop(lambda *_: None, after=lambda: is_done, courtesy=Courtesy(sched_yield=send_again))
    loop.add(end.fileno(), lambda _: seen.append(end.recv(9).decode()))

    async def other() -> None:
        while True:
            if seen and seen[-1] != "other":
                seen.append("other")
            await trio.lowlevel.checkpoint()

    near.send(b"first")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        nursery.start_soon(other)
        with trio.fail_after(60):
            while len(seen) < (3 if is_done else 2):  # noqa: ASYNC110
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert seen[:3] == (["first", "second", "other"] if is_done else ["first", "other"])
