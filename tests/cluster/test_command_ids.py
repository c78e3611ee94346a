"""A command's id belongs to one user and one request in every protocol; a refusal reveals no details."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import trio

from bedrockish import CommandIdError, connect
from bedrockish.api.requests import USER_ADD, USER_GRANT, MemberChange, digest_of
from bedrockish.api.wire import Answered
from bedrockish.cli.upkeep import everywhere
from bedrockish.client.blocking import Connection
from bedrockish.client.in_thread import run
from bedrockish.client.request_builder import make_request
from bedrockish.client.sansio.transaction_steps import settle_request
from bedrockish.common.password_hash import hash_password
from bedrockish.errors import BedrockishError, ForgottenError, UnavailableError, UsageError
from tests.cluster.interfaces import Caller, RefusedError
from tests.cluster.story import BOUND_S, level, ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster

KEEPS_LITTLE = {"timings": {"conflict_window_ms": 1_000}}
PAY = "UPDATE account SET balance = balance - 10 WHERE id = 1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes and four users: an admin, a reader, and two writers, of which one may write one table only."""
    users = {"adam": str(hash_password("adam!", bytes(16)))}
    cluster = LocalCluster(tmp_path_factory.mktemp("ids") / "three", settings={"users": users, **KEEPS_LITTLE})
    cluster.add_http()
    cluster.write_files()
    cluster.login = "adam:adam!@"
    try:
        for node in cluster.nodes:
            node.start()
        trio.run(ready, cluster)
        with connect(cluster.url()) as db:
            db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER)")
            db.execute("CREATE TABLE pub(id INTEGER PRIMARY KEY, x TEXT)")
            db.execute("INSERT INTO account VALUES (1, 1000)")
            for name, role, table in (
                ("adam", "admin", ""),
                ("rita", "reader", ""),
                ("will", "writer", ""),
                ("una", "", "pub"),
            ):
                _add(db, name, role, table)
        trio.run(level, cluster)
        yield cluster
    finally:
        cluster.stop()


def _add(db: Connection, name: str, role: str, table: str) -> None:
    secret = str(hash_password(f"{name}!", bytes(16)))
    run(db._client.change_members, MemberChange(USER_ADD, name, role=role, secret=secret))
    if table:
        run(db._client.change_members, MemberChange(USER_GRANT, name, role="writer", table=table))


def as_user(cluster: LocalCluster, name: str, node: int = 0) -> Connection:
    return connect(Caller(cluster, node, name, f"{name}!").url)


def balance(cluster: LocalCluster) -> int:
    with as_user(cluster, "adam") as db:
        found: int = db.execute("SELECT balance FROM account", read="strict").value()
        return found


def post(cluster: LocalCluster, name: str, path: str, sql: list[Any], command: str, node: int = 0) -> Any:
    """Send statements by HTTP; return the JSON of the answer or of the error."""
    try:
        return Caller(cluster, node, name, f"{name}!").post(f"{path}?command={command}", sql)
    except RefusedError as error:
        return json.loads(str(error))


def test_a_payment_under_an_id_of_another_user_is_an_error_and_does_not_happen(cluster: LocalCluster) -> None:
    with as_user(cluster, "una") as una, as_user(cluster, "will", 1) as will:
        una.execute("INSERT INTO pub(x) VALUES ('first')", command="pay-1")
        before = balance(cluster)
        for sql, resend in ((PAY, False), (PAY, True), ("SELECT 1", False)):
            with pytest.raises(CommandIdError, match="another user's command") as caught:
                will.execute(sql, command="pay-1", resend=resend)
            assert (caught.value.details["reason"], caught.value.retry) == ("user", False)
        for path in ("/db/execute", "/db/transaction"):
            refused = post(cluster, "will", path, [PAY], "pay-1")
            assert refused["code"] == "command_id"
        assert balance(cluster) == before
        assert una.execute("INSERT INTO pub(x) VALUES ('first')", command="pay-1").rowcount == 1
        assert una.settle("pay-1")
        assert will.settle("pay-1") is False


def test_another_request_under_the_same_id_is_an_error(cluster: LocalCluster) -> None:
    with as_user(cluster, "will") as will:
        will.execute("INSERT INTO pub(x) VALUES (?)", ("a",), command="own")
        for sql, params in (
            ("INSERT INTO pub(x) VALUES (?)", ("b",)),
            ("INSERT INTO pub(x) VALUES ('a')", None),
            (PAY, None),
            ("SELECT 1", None),
        ):
            with pytest.raises(CommandIdError, match="other statements or other parameters"):
                will.execute(sql, params, command="own")
            with pytest.raises(CommandIdError):
                will.execute(sql, params, command="own", resend=True)
            request = [sql if params is None else [sql, *params]]
            assert post(cluster, "will", "/db/execute", request, "own")["code"] == "command_id"
        again = will.execute("INSERT INTO pub(x) VALUES (?)", ("a",), command="own")
        assert again.rowcount == 1
        # The request counts as the same one when it comes by HTTP.
        by_http = post(cluster, "will", "/db/execute", [["INSERT INTO pub(x) VALUES (?)", "a"]], "own")
        assert by_http["results"][0]["rowcount"] == 1
        assert will.execute("SELECT count(*) FROM pub WHERE x IN ('a', 'b')", read="strict").value() == 1


def test_settled_command_id_is_refused_by_every_interface(cluster: LocalCluster) -> None:
    with as_user(cluster, "will") as will, as_user(cluster, "rita", 2) as rita:
        before = balance(cluster)
        assert will.settle("mine") is False
        assert will.settle("mine") is False
        assert rita.settle("ritas") is False
        for command, reason in (("mine", "settled"), ("ritas", "user")):
            with pytest.raises(CommandIdError) as caught:
                will.execute(PAY, command=command)
            assert caught.value.details["reason"] == reason
            for path in ("/db/execute", "/db/transaction"):
                refused = post(cluster, "will", path, [PAY], command, node=1)
                assert (refused["code"], refused["details"]["reason"]) == ("command_id", reason)
        assert will.settle("ritas") is False
        assert balance(cluster) == before


def test_settling_with_another_digest_is_refused(cluster: LocalCluster) -> None:
    """A client whose nodes died does not send the text again, only the digest of the request."""
    with as_user(cluster, "will") as will:
        done = make_request("lost", ["INSERT INTO pub(x) VALUES ('lost')"], "session", "serializable", 10)
        will.execute("INSERT INTO pub(x) VALUES ('lost')", command="lost")
        step = settle_request(done)
        assert step.request.digest == digest_of(done)
        assert isinstance(run(will._client._call, step, 10), Answered)
        other = make_request("lost", [PAY], "session", "serializable", 10)
        with pytest.raises(CommandIdError):
            run(will._client._call, settle_request(other), 10)


def test_an_open_transaction_is_ended_by_its_user_and_by_admins_only(cluster: LocalCluster) -> None:
    with as_user(cluster, "will") as will, as_user(cluster, "rita") as rita:
        tx = will.begin()
        tx.execute(PAY)
        shown = run(rita._client.upkeep, {"do": "transactions"})["open"]
        assert [tx.command in str(one) for one in shown] == [False]
        assert tx.command not in str(rita.status())
        with pytest.raises(CommandIdError):
            rita.settle(tx.command)
        with pytest.raises(BedrockishError, match="role admin"):
            run(rita._client.upkeep, {"do": "end", "command": shown[0]["command"]})
        with as_user(cluster, "adam") as adam, pytest.raises(UsageError, match="no open transaction"):
            run(adam._client.upkeep, {"do": "end", "command": tx.command})
        tx.execute(PAY)
        tx.commit()
        tx = will.begin()
        tx.execute(PAY)
        with as_user(cluster, "adam") as adam:
            (open_,) = run(adam._client.upkeep, {"do": "transactions"})["open"]
            run(adam._client.upkeep, {"do": "end", "command": open_["command"]})
        with pytest.raises(UnavailableError, match="an operator has ended"):
            tx.commit()


def test_id_of_an_open_transaction_is_refused_for_other_requests(cluster: LocalCluster) -> None:
    with as_user(cluster, "will") as will:
        tx = will.begin()
        tx.execute("INSERT INTO pub(x) VALUES ('open')")
        tx.commit()
        with pytest.raises(CommandIdError):
            will.execute(PAY, command=tx.command)
        assert will.settle(tx.command)


def test_admin_cannot_use_the_command_id_of_another_user_over_any_interface(cluster: LocalCluster) -> None:
    caller = Caller(cluster, 1, "adam", "adam!")
    with as_user(cluster, "will") as will:
        will.execute("INSERT INTO pub(x) VALUES ('will')", command="wills")
    with pytest.raises(CommandIdError), connect(caller.url) as db:
        db.execute("INSERT INTO pub(x) VALUES ('will')", command="wills")
    with pytest.raises(RefusedError, match="command_id"):
        caller.post("/db/execute?command=wills", ["INSERT INTO pub(x) VALUES ('will')"])


def test_id_of_a_pruned_command_stays_bound_to_its_user_and_request(cluster: LocalCluster) -> None:
    """Another request under that id is an error, which does not say that the command has happened."""
    with as_user(cluster, "una") as una, as_user(cluster, "will", 1) as will, as_user(cluster, "adam") as adam:
        una.execute("INSERT INTO pub(x) VALUES ('old')", command="old-1")
        will.execute("INSERT INTO pub(x) VALUES (?)", ("old",), command="old-2")
        una.settle("old-3")

        told: Any = None
        url, until_s = Caller(cluster, 0, "adam", "adam!").url, time.monotonic() + BOUND_S
        while removed(cluster) < 3:  # young entries stay, and so does the last one of each timeline
            assert time.monotonic() < until_s, told
            for one in (una, will, adam):
                one.execute("INSERT INTO pub(x) VALUES ('later')")
            time.sleep(0.5)
            asked = {"do": "prune", "older_than_s": 0.0, "larger_than_mb": None, "force": False}
            told = trio.run(everywhere, url, asked)
        before = balance(cluster)
        with pytest.raises(CommandIdError, match="another user's command"):
            will.execute(PAY, command="old-1")
        with pytest.raises(CommandIdError, match="other statements or other parameters"):
            will.execute(PAY, command="old-2")
        with pytest.raises(CommandIdError, match="was settled before it happened"):
            una.execute("INSERT INTO pub(x) VALUES ('old')", command="old-3")
        with pytest.raises(ForgottenError, match="has happened"):
            will.execute("INSERT INTO pub(x) VALUES (?)", ("old",), command="old-2")
        assert balance(cluster) == before


def removed(cluster: LocalCluster) -> int:
    """Return how many of the commands the nodes keep as those of removed entries, at the node that has fewest."""
    query = "SELECT count(*) FROM bedrockish_past WHERE command LIKE 'old-%' AND digest <> x''"
    counts = []
    for node in cluster.nodes:
        with closing(sqlite3.connect(f"file:{node.database}?mode=ro", uri=True)) as file:
            counts.append(int(file.execute(query).fetchone()[0]))
    return min(counts)
