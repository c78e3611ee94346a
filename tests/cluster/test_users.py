"""Three real nodes with users: the journal has the user of each command, from every interface."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import cbor2
import pytest
import trio

from bedrockish import connect, open_client
from bedrockish.api.requests import Request, Statement
from bedrockish.api.wire import Answered, Execute, decode_reply, encode_call
from bedrockish.client.feed import Changes
from bedrockish.common.password_hash import hash_password
from bedrockish_journal.model.transaction import decode_transaction
from bedrockish_net.events import Hello
from tests.cluster.interfaces import INTERFACES, Caller
from tests.cluster.releases import unpack_last_release
from tests.cluster.story import ready
from tests.forked import program
from tests.net.links import dial_link
from tools.cluster import LocalCluster, clean_environment

pytestmark = pytest.mark.cluster

PASSWORDS = {"ann": "s/e@cret", "bob": "hunter2"}
USERS = {user: str(hash_password(password, bytes(16))) for user, password in PASSWORDS.items()}
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with two users, and a token at the node A."""
    cluster = LocalCluster(tmp_path_factory.mktemp("users") / "three", settings={"users": USERS})
    cluster.add_http()
    cluster.write_files()
    cluster.login = "ann:s%2Fe%40cret@"
    for node in cluster.nodes:
        node.config.write_text('http_token = "t"\n' + node.config.read_text())
    try:
        for node in cluster.nodes:
            node.start()
        trio.run(ready, cluster)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE came(interface TEXT PRIMARY KEY, n INTEGER DEFAULT 0)")
        yield cluster
    finally:
        cluster.stop()


def caller(cluster: LocalCluster, user: str, node: int = 0) -> Caller:
    return Caller(cluster, node, user, PASSWORDS[user])


def whose(cluster: LocalCluster, table: str = "came") -> dict[str, str | None]:
    """Return the author of the first change to each row, by SQL."""
    asked = "SELECT row_key, user_name FROM bedrockish_changes WHERE table_name = ? ORDER BY clock DESC, seq DESC"
    with connect(cluster.url()) as db:
        return {str(key): user for key, user in db.execute(asked, (table,), read="strict")}


def test_every_interface_records_the_author_of_a_change(cluster: LocalCluster) -> None:
    for number, (name, interface) in enumerate(INTERFACES.items()):
        for user in PASSWORDS:
            interface(caller(cluster, user, number % 3), f"INSERT INTO came(interface) VALUES ('{name} {user}')")
    expected = {f"{name} {user}": user for name in INTERFACES for user in PASSWORDS}
    assert {key: user for key, user in whose(cluster).items() if key in expected} == expected


def test_schema_changes_and_requests_with_the_token_have_an_author(cluster: LocalCluster) -> None:
    """The token's author is not a valid user name, so no user can pose as it."""
    with connect(caller(cluster, "bob").url) as db:
        db.execute("CREATE TABLE bobs(x)")
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.nodes[1].http_port}/db/execute",
        b"[\"INSERT INTO came(interface) VALUES ('token')\"]",
        {"Content-Type": "application/json", "Authorization": "Bearer t"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
        assert reply.status == 200
    assert whose(cluster)["token"] == "(http_token)"
    asked = "SELECT user_name FROM bedrockish_changes WHERE statement = 'CREATE TABLE bobs(x)'"
    with connect(cluster.url()) as db:
        assert db.execute(asked, read="strict").value() == "bob"


def test_user_name_in_a_call_is_ignored(cluster: LocalCluster) -> None:
    """A user name in a call is ignored: the interface's login counts."""
    call = encode_call(Execute(1, Request("forged", (Statement("INSERT INTO came(interface) VALUES ('forged')"),))))
    forged = cbor2.dumps({**cbor2.loads(call), "user": "ann"})

    async def send() -> None:
        hello = Hello("x", None, "client", info={"user": "bob", "password": PASSWORDS["bob"]})
        link = await dial_link("127.0.0.1", cluster.nodes[0].port, hello)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await link.send(forged)
            assert isinstance(decode_reply(await link.receive()), Answered)
            await link.aclose()

    trio.run(send)
    assert whose(cluster)["forged"] == "bob"


async def test_each_command_of_a_shared_transaction_has_its_own_user(cluster: LocalCluster) -> None:
    """Two users send many commands to one node at one moment; feed, command line and journal name the same users."""
    made: dict[str, str] = {}
    with trio.fail_after(WAIT_S):
        for attempt in range(20):

            async def insert(user: str, number: int, attempt: int = attempt) -> None:
                async with open_client(caller(cluster, user).url) as client:
                    for count in range(5):
                        key = f"{user} {attempt} {number} {count}"
                        made[key] = user
                        await client.execute("INSERT INTO came(interface) VALUES (?)", (key,))

            async with trio.open_nursery() as nursery:
                for number in range(6):
                    for user in PASSWORDS:
                        nursery.start_soon(insert, user, number)
            found = await trio.to_thread.run_sync(whose, cluster)
            assert {key: found[key] for key in made} == made
            async with open_client(cluster.url()) as client:
                rows = (await client.execute("SELECT body FROM bedrockish_journal WHERE kind = 'rows'")).rows
                if any(len(set(decode_transaction(body).users)) > 1 for (body,) in rows):
                    break
        else:
            pytest.fail("commands of two users never shared a transaction")
        seen: dict[str, str | None] = {}
        async with open_client(cluster.url()) as client:
            async for transaction in Changes(client, tables=["came"]):
                for change, maker in zip(transaction.changes, transaction.makers, strict=True):
                    assert change.after is not None
                    seen[str(change.after[0])] = transaction.whose.get(maker)
                if len(made.keys() & seen.keys()) == len(made):
                    break
    assert {key: seen[key] for key in made} == made


def test_command_line_and_http_print_the_user(cluster: LocalCluster) -> None:
    with connect(caller(cluster, "bob").url) as db:
        db.execute("INSERT INTO came(interface) VALUES ('printed')", command="printed-1")
    done = program("changes", cluster.url(), "--table", "came", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    while "printed-1" not in [line["command"] for line in lines]:
        lines = [json.loads(line) for line in program("changes", cluster.url(), "--json").stdout.splitlines()]
    (mine,) = [line for line in lines if line["command"] == "printed-1"]
    assert (mine["user"], mine["joined_users"], mine["changes"][0]["user"]) == ("bob", [], "bob")
    text = program("changes", cluster.url()).stdout
    assert f"cursor {mine['cursor']} of bob\n" in text
    lines = caller(cluster, "ann").post("/changes?wait=10&table=came", None).splitlines()
    assert "bob" in [json.loads(line).get("user") for line in lines]
    shown = program("journal", "show", str(cluster.nodes[0].database), "--changes").stdout
    assert "command printed-1 of bob\n" in shown


def test_last_release_reads_transactions_of_users(cluster: LocalCluster, tmp_path: Path) -> None:
    sources = unpack_last_release(tmp_path)
    with connect(cluster.url()) as db:
        rows = db.execute("SELECT body, command FROM bedrockish_journal ORDER BY seq").rows
    assert any(decode_transaction(body).users for body, _ in rows)
    read = (
        "import sys, json\nfrom bedrockish_journal.model.transaction import decode_transaction as read\n"
        "for body, command in json.load(sys.stdin):\n"
        "    found = read(bytes.fromhex(body))\n"
        "    assert (found.command, found.body) == (command, bytes.fromhex(body))\n"
        "print('read')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", read],
        input=json.dumps([(body.hex(), command) for body, command in rows]),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd=sources[0],
        env=clean_environment(sources),
        check=False,
    )
    assert (done.stdout, done.returncode) == ("read\n", 0), done.stderr
