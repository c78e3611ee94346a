"""A node's identity: its cluster, its members, and the accusations about its file that it believes."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.api.url import Address
from bedrockish.client.credentials import ClientCredentials
from bedrockish.config.config import Config
from bedrockish.engine.engine import Engine, Founding
from bedrockish.engine.storage.database_file import check_alone, is_node_file
from bedrockish.errors import ConfigError
from bedrockish.node.cluster import identity
from bedrockish.node.cluster.identity import (
    ASKS,
    OLDER_RELEASE,
    find_cluster,
    info_for_clients,
    judge_identity,
    only_asks,
)
from bedrockish.node.cluster.incarnations import AMNESIA, OLDER_FILE, disbelieve
from bedrockish.node.cluster.starts import STARTS, read_starts
from bedrockish.node.peer_intake import NEW_S
from bedrockish.node.runtime import Runtime
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_net.errors import Code, RemoteProtocolError
from bedrockish_net.events import Hello
from bedrockish_net.mesh import PeerUp, TurnedAway
from tests.net.links import accept_link


def members(cluster_id: str, level: int, store: str = "") -> Membership:
    return Membership(1, {"A": Member("A", "h:1"), "B": Member("B", "h:2", store=store)}, cluster_id, level)


OURS = members("ours", LEVEL)
ID_OF_OURS = {"cluster_id": "ours", "level": LEVEL, "store": "s", "batches": 5}
ID_OF_ANOTHER = {**ID_OF_OURS, "cluster_id": "theirs"}
OLDER: dict[str, Any] = {**ID_OF_OURS, "level": LEVEL - 1}


@pytest.mark.parametrize(
    ("info", "code"),
    [
        ({**ID_OF_OURS, "store": "another file"}, ""),  # other nodes judge that
        (ID_OF_ANOTHER, Code.CLUSTER),
        (OLDER, OLDER_RELEASE),
        ({**ID_OF_OURS, "level": str(LEVEL)}, Code.MALFORMED),
        ({**ID_OF_OURS, "cluster_id": 7}, Code.MALFORMED),
        ({"cluster_id": "ours", "level": LEVEL, "batches": 5}, Code.MALFORMED),
        ({"cluster_id": "ours", "level": LEVEL, "store": "s"}, Code.MALFORMED),
    ],
)
def test_identity_of_a_cluster_is_checked(info: dict[str, Any], code: str) -> None:
    refusal = judge_identity(Hello("B", "shop", info=info), OURS)
    assert (refusal.code if refusal is not None else "") == code


def test_identity_refusals_name_the_remedy() -> None:
    refusal = judge_identity(Hello("B", "shop", info=ID_OF_ANOTHER), OURS)
    assert refusal is not None
    assert "its id is theirs, ours is ours" in refusal.reason
    assert "'bedrockish member address URL B HOST:PORT'" in refusal.reason
    refusal = judge_identity(Hello("B", "shop", info=OLDER), OURS)
    assert refusal is not None
    assert "install their release on B" in refusal.reason


OWN = {"store": "s", "starts": [[b"1", 0], [b"2", 100]]}


@pytest.mark.parametrize(
    ("said", "why_not"),
    [
        ({}, ""),
        ({"store": "other", "start": b"2", "batches": 150}, ""),
        ({"store": "s", "start": b"1", "batches": 120}, ""),  # our file was shorter when it went on: it was put back
        ({"store": "s", "start": b"3", "batches": 150}, ""),  # a start that our file lacks
        ({"store": "s", "start": b"2", "batches": 10**12}, "claims to have seen 1000000000000 batches of this process"),
        ({"store": "s", "start": b"2", "batches": 200}, "our file has all of the 200 batches"),
        ({"store": "s", "start": b"1", "batches": 100}, "our file has all"),
        ({"store": "s", "start": "2", "batches": 10**12}, ""),
    ],
)
def test_accusation_counts_only_from_plausible_members(said: dict[str, object], why_not: str) -> None:
    """A node ignores an impossible accusation and believes a possible one, because it may have forgotten promises."""
    found = disbelieve(said, OWN, 200)
    assert (why_not in found) if why_not else not found


def config(node: str, **ports: int) -> Config:
    peers = {name: Address("127.0.0.1", port) for name, port in ports.items()}
    return Config(node=node, database="x.db", listen=peers[node], peers=peers)


async def answer(info: dict[str, Any], stream: trio.SocketStream, node: str = "A") -> None:
    local = Hello(node, "bedrockish", info=info)
    try:
        link = await accept_link(stream, local)
    except RemoteProtocolError:
        return
    assert only_asks(link.remote)
    assert link.remote.info == {ASKS: "cluster_id"}
    await link.aclose()


async def listening(nursery: trio.Nursery, info: dict[str, Any], node: str = "A") -> int:
    listeners: list[trio.SocketListener] = await nursery.start(
        partial(trio.serve_tcp, partial(answer, info, node=node), 0, host="127.0.0.1")
    )
    return int(listeners[0].socket.getsockname()[1])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "QUIET_S", 0.0)


async def test_first_founder_by_name_draws_the_cluster_id_and_others_wait(caplog: pytest.LogCaptureFixture) -> None:
    found, level = await find_cluster(config("A", A=1, B=2, C=3), ClientCredentials())
    assert len(found) == 16
    assert level == LEVEL
    assert found != (await find_cluster(config("A", A=1), ClientCredentials()))[0]
    says = ("gets its id from A, at 127.0.0.1:1; waiting for it", "cannot connect to 127.0.0.1:3")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(find_cluster, config("B", A=1, B=2, C=3), ClientCredentials())
        with trio.fail_after(60):
            while not all(text in caplog.text for text in says):  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_node_without_a_file_takes_the_cluster_id_of_a_member(caplog: pytest.LogCaptureFixture) -> None:
    """The founder asks as well, because its file may be lost."""
    async with trio.open_nursery() as nursery:
        port = await listening(nursery, {"cluster_id": "shop's", "cluster_level": LEVEL})
        assert await find_cluster(config("B", A=port, B=2), ClientCredentials()) == ("shop's", LEVEL)
        port = await listening(nursery, {"cluster_id": "shop's", "cluster_level": LEVEL}, "B")
        assert await find_cluster(config("A", A=1, B=port), ClientCredentials()) == ("shop's", LEVEL)
        port = await listening(nursery, {"cluster_id": "shop's", "cluster_level": LEVEL + 1})
        with pytest.raises(ConfigError, match="install their release here"):
            await find_cluster(config("B", A=port, B=2), ClientCredentials())
        port = await listening(nursery, {"cluster_id": "shop's", "cluster_level": LEVEL, "members": ["A", "B"]})
        assert await find_cluster(config("B", A=port, B=2), ClientCredentials()) == ("shop's", LEVEL)
        with pytest.raises(ConfigError, match=r"C is not a member of the cluster at .*, which has A, B; let it in"):
            await find_cluster(config("C", A=port, C=2), ClientCredentials())
        for info in ({"cluster_id": 7}, {"cluster_id": "x", "cluster_level": None}):
            port = await listening(nursery, info, "B")
            assert len((await find_cluster(config("A", A=1, B=port), ClientCredentials()))[0]) == 16
        port = await listening(nursery, {"cluster_id": "not B's"}, "C")  # a wrong address
        assert len((await find_cluster(config("A", A=1, B=port), ClientCredentials()))[0]) == 16
        nursery.cancel_scope.cancel()


def test_missing_and_empty_files_are_not_a_nodes_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert not is_node_file(path)
    path.touch()
    assert not is_node_file(path)
    founding = Founding("A", Membership(0, {"A": Member("A", "h:1")}, "id", LEVEL), "store")
    Engine.open(path, founding=founding).close()
    assert is_node_file(path)
    path.write_bytes(b"this is no database at all, and is not to be founded anew" * 20)
    assert is_node_file(path)


def test_a_file_of_a_newer_release_is_not_opened(tmp_path: Path) -> None:
    """This release could misread the file's content."""
    path = tmp_path / "a.db"
    newer = Membership(0, {"A": Member("A", "h:1")}, "id", LEVEL + 1)
    Engine.open(path, founding=Founding("A", newer, "store")).close()
    with pytest.raises(ConfigError, match=f"at release level {LEVEL + 1}, and this program reads up to {LEVEL}"):
        Engine.open(path, founding=None)


async def test_new_node_stops_serving_if_another_cluster_has_it_as_a_member(tmp_path: Path) -> None:
    """If its disk is not mounted, the first node of a cluster founds another cluster, which must not take writes."""
    alone = Membership(0, {"A": Member("A", "127.0.0.1:1")}, "ours", LEVEL)
    engine = Engine.open(tmp_path / "a.db", founding=Founding("A", alone, "store"))
    runtime = Runtime(engine, config("A", A=1))
    state, theirs = runtime.core.state, {"cluster_id": "theirs"}
    for hello in (Hello("B", "c", to="X", info=theirs), Hello("B", "c", to="A", info={"cluster_id": "ours"})):
        runtime.peers.on_stranger(hello)
        assert state.trouble == ""
    began, runtime.output.info[STARTS] = runtime.output.info[STARTS], [*runtime.output.info[STARTS]] * 2
    state.timelines.applied["A"] = 1
    runtime.peers.on_stranger(Hello("B", "c", to="A", info=theirs))
    assert state.trouble == "", "an older cluster goes on when an address of another one is wrong"
    runtime.output.info[STARTS] = began
    runtime.peers._began -= NEW_S
    runtime.peers.on_stranger(Hello("B", "c", to="A", info=theirs))
    assert state.trouble == "", "the node has run for a day since its first start"
    runtime.peers._began += NEW_S
    engine.batch.hand_over(lambda: None)
    runtime.peers.on_stranger(Hello("B", "c", to="A", info=theirs))
    assert state.trouble == "", "a thread has the writer, and the loop does not wait for it"
    engine.batch.take_back()
    runtime.peers.on_stranger(Hello("B", "c", to="A", info=theirs))
    assert state.trouble.startswith("B has node A as a member of another cluster, and the file of this one is new")
    engine.close()


TOLD = "your file is another one"


async def test_accusation_of_a_stranger_or_with_impossible_numbers_is_ignored(tmp_path: Path) -> None:
    """After a possible accusation the node never votes again with this file: it may have forgotten promises."""
    ours = Membership(0, {name: Member(name, f"127.0.0.1:{port}") for port, name in enumerate("AB", 1)}, "ours", LEVEL)
    engine = Engine.open(tmp_path / "a.db", founding=Founding("A", ours, "store"))
    runtime = Runtime(engine, config("A", A=1, B=2))
    start = read_starts(runtime.output.info[STARTS])[-1][0]
    state = runtime.core.state

    async def accuse(code: str, info: dict[str, Any], *, expected: str = "") -> str:
        runtime.peers.on_net(TurnedAway("B", code, TOLD, info))
        return await barred(expected)

    async def barred(expected: str = "") -> str:
        await trio.sleep(0.04)
        with trio.move_on_after(60):
            while state.roster.barred != expected:  # noqa: ASYNC110
                await trio.sleep(0.002)
        return state.roster.barred

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        seen = {"store": "store", "start": start, "batches": 10**12}
        for code in (AMNESIA, OLDER_FILE):
            assert await accuse(code, {}) == ""
            assert await accuse(code, {"cluster_id": "theirs", "store": "store", "start": b"?", "batches": 7}) == ""
            assert await accuse(code, {"cluster_id": "ours", **seen}) == ""
        assert runtime.status()["nodes"]["B"]["trouble"].startswith("the program at its address refuses the connection")
        runtime.peers.on_net(PeerUp("B"))
        assert runtime.status()["nodes"]["B"]["trouble"] is None
        assert await accuse(AMNESIA, {"cluster_id": "ours", **seen, "store": "another"}, expected=TOLD) == TOLD
        runtime.peers.on_net(PeerUp("B"))
        assert await barred() == ""
        assert await accuse(OLDER_FILE, {"cluster_id": "ours", **seen, "start": b"?"}, expected=TOLD) == TOLD
        assert state.roster.lost_promise
        nursery.cancel_scope.cancel()
    engine.close()


def test_file_with_tables_founds_a_cluster_of_one(tmp_path: Path) -> None:
    """Other founders would take its rows for damage."""
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY)")
    check_alone(path, "A", ["A"])
    with pytest.raises(ConfigError, match="has tables already, and B and C would begin without them"):
        check_alone(path, "A", ["C", "B", "A"])
    ours = Membership(0, {"A": Member("A", "h:1")}, "ours", LEVEL)
    Engine.open(path, founding=Founding("A", ours, "store")).close()
    check_alone(path, "A", ["A", "B"])  # the file is a node's now
    check_alone(tmp_path / "none.db", "A", ["A", "B"])


def test_hello_to_a_client_names_only_the_cluster() -> None:
    """A client has not logged in yet when it reads HELLO; files, processes, commands and the release are for peers."""
    info = {"store": "s", "starts": [[b"x", 0]], "version": "1", "plugins": {}, "batches": 1, "level": 5}
    info |= {"cluster_id": "id", "cluster_level": 5, "members": ["A"]}
    assert info_for_clients(info, {}) == {"cancels": True, "cluster_id": "id"}
    asked = {"cancels": True, "cluster_id": "id", "cluster_level": 5, "members": ["A"]}
    assert info_for_clients(info, {"asks": "cluster_id"}) == asked
