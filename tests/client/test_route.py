"""The order in which a client tries nodes: of the URL, then learnt ones, failed ones last; or the nearest first."""

import pytest
import trio

from bedrockish import open_client
from bedrockish.api.url import Address, parse_url
from bedrockish.client import trio_client as aio
from bedrockish.client.credentials import credentials_of
from bedrockish.client.discovery import in_dial_order, members_of
from bedrockish.client.sansio.retry import Backoff
from bedrockish.client.sansio.route import AVOID_S, Route
from bedrockish.errors import AuthenticationError, UnavailableError
from bedrockish_net.events import Hello
from tests.client.scripted import ScriptedNode, running
from tests.net.links import accept_link

A, B, C, D = (Address(name, 1) for name in "abcd")
GONE = UnavailableError("connection refused")


def route(*addresses: Address) -> Route:
    return Route(parse_url("bedrockish://" + ",".join(map(str, addresses))), Backoff(), lambda: 0.5)


def test_client_tries_a_failed_node_last() -> None:
    this = route(A, B, C)
    assert this.next(0.0) == A
    this.leave()
    this.note_failure(A, GONE, 0.0)
    assert this.next(0.0) == B
    this.note_open(B)
    this.leave()
    assert this.next(1.0) == C
    this.note_open(C)
    this.leave()  # otherwise A would be next, which failed a second ago
    assert this.next(1.0) == B
    this.note_open(B)
    this.leave()
    this.leave()
    assert this.next(AVOID_S + 1) == A


def test_client_tries_all_nodes_in_turn_when_all_are_dead() -> None:
    this = route(A, B)
    found = []
    for _ in range(4):
        address = this.next(0.0)
        found.append(address)
        this.leave()
        this.note_failure(address, GONE, 0.0)
    assert found == [A, B, A, B]
    assert "no node can be reached at a:1, b:1: connection refused" in this.unreachable().message


def test_route_adds_and_drops_members_and_keeps_nodes_of_the_url() -> None:
    this = route(A, B)
    assert this.next(0.0) == A
    assert this.learn({A: True, C: True, D: False}, 0.0)
    assert list(this.addresses) == [A, B, C, D]
    assert this.next(0.0) == A  # A works, so the client stays
    assert not this.learn({A: True, C: True}, 0.0)
    assert list(this.addresses) == [A, B, C]
    assert this.learn({D: False}, 0.0)
    this.note_failure(A, GONE, 0.0)
    this.leave()
    this.note_failure(B, GONE, 0.0)
    this.leave()
    assert this.next(0.0) == D  # all three are down, D by report: the next one in turn
    this.leave()
    assert this.learn({D: True}, 0.0) is False
    assert this.next(0.0) == D


def test_node_in_use_is_kept_after_it_ceased_to_be_a_member() -> None:
    this = route(A)
    this.learn({A: True, C: True}, 0.0)
    this.leave()
    assert this.next(0.0) == C
    this.learn({D: True}, 0.0)
    assert this.addresses == (A, C, D)
    assert this.next(0.0) == C


def test_wrong_password_is_reported_when_all_nodes_were_asked() -> None:
    this = route(A, B)
    this.next(0.0)
    this.note_failure(A, AuthenticationError("wrong"), 0.0)
    assert not this.has_auth_refusal
    this.note_failure(B, GONE, 0.0)
    assert this.has_auth_refusal
    assert this.give_up_at(0.0) < 0
    assert isinstance(this.unreachable(), AuthenticationError)
    this.note_open(A)
    assert not this.has_auth_refusal


def test_malformed_addresses_of_members_are_ignored() -> None:
    told = {"A": {"address": "a:1", "up": False}, "B": {"address": "b:1"}, "C": {"address": "c:0"}, "D": {}, "E": 7}
    assert members_of(told) == {A: False, B: True}
    assert members_of(None) == {}


class Knows(ScriptedNode):
    """A node that reports other nodes."""

    others: tuple[ScriptedNode, ...] = ()

    def status(self) -> dict[str, object]:
        return {"nodes": {one.name: {"address": f"127.0.0.1:{one.port}", "up": True} for one in (self, *self.others)}}


async def test_client_uses_a_member_that_the_url_does_not_name() -> None:
    first, second = Knows("A"), ScriptedNode("B")
    first.others = (second,)
    async with running(first, second) as url, open_client(url.partition(",")[0] + "/?discover=yes") as client:
        while len(client._core.route.addresses) < 2:  # noqa: ASYNC110  its own task
            await trio.sleep(0.01)
        assert (await client.execute("SELECT 1")).place == ("A", 1)
        first.scope.cancel()
        assert (await client.execute("SELECT 1")).place == ("B", 1)


async def test_url_with_one_node_is_served_by_that_node_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "LEARN_S", 0.01)
    first, second = Knows("A"), ScriptedNode("B")
    first.others = (second,)
    async with running(first, second) as url, open_client(url.partition(",")[0] + "/?connect_timeout=5") as client:
        await client.execute("SELECT 1")
        await trio.sleep(0.05)
        first.scope.cancel()
        with pytest.raises(UnavailableError):
            await client.execute("SELECT 1", timeout=0.5)


async def test_members_are_asked_again_only_while_the_client_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "LEARN_S", 0.01)
    asked = 0

    class Counts(Knows):
        def status(self) -> dict[str, object]:
            nonlocal asked
            asked += 1
            return super().status()

    async with running(Counts("A")) as url, open_client(url + "/?discover=yes") as client:
        while not asked:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await trio.sleep(0.1)
        assert asked == 1
        await client.execute("SELECT 1")
        while asked < 2:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_nearest_prefers_the_first_node_to_answer() -> None:
    near, dead = ScriptedNode("B"), ScriptedNode("C")
    async with running(near, dead) as url, trio.open_nursery() as nursery:
        dead.scope.cancel()
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def slow(stream: trio.SocketStream) -> None:
            await trio.sleep(0.3)
            with trio.move_on_after(5):
                link = await accept_link(stream, Hello("A", "bedrockish"))
                await link.aclose()

        nursery.start_soon(trio.serve_listeners, slow, listeners)
        far = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        hosts = url.removeprefix("bedrockish://").split(",")
        target = parse_url(f"bedrockish://{far},{hosts[1]},{hosts[0]}/?choice=nearest")
        found = [str(one) for one in await trio.to_thread.run_sync(in_dial_order, target, credentials_of(target))]
        assert found == [hosts[0], far, hosts[1]]
        async with open_client(f"bedrockish://{far},{hosts[0]}/?choice=nearest&discover=no") as client:
            assert (await client.execute("SELECT 1")).place == ("B", 1)
        nursery.cancel_scope.cancel()


def test_random_order_of_nodes_has_all_addresses() -> None:
    target = parse_url("bedrockish://a,b,c,d,e,f,g,h/?choice=random")
    orders = {in_dial_order(target, credentials_of(target)) for _ in range(20)}
    assert len(orders) > 1
    assert all(sorted(order) == sorted(target.addresses) for order in orders)
