"""Open transactions go on while the members of the cluster change."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bedrockish import Client, open_client
from bedrockish.api.requests import (
    ADD,
    ADDRESS,
    DEMOTE,
    PROMOTE,
    REMOVE,
    REPLACE,
    USER_ADD,
    USER_GRANT,
    USER_PASSWORD,
    USER_REMOVE,
    USER_REVOKE,
    MemberChange,
)
from bedrockish.common.password_hash import hash_password
from bedrockish.errors import ConflictError, ForbiddenError, MembershipError
from bedrockish_journal.model.membership import read_membership
from tests.cluster.story import judge_files, level, ready, status_of, until
from tests.cluster.test_members import newcomer, voters
from tools.cluster import LocalCluster, free_ports, local_cluster

pytestmark = pytest.mark.cluster


def secret(password: str) -> str:
    return str(hash_password(password, bytes(16)))


async def test_open_transaction_goes_on_over_a_change_of_the_members(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        third = f"127.0.0.1:{cluster.nodes[2].port}"
        changes = (
            MemberChange(ADD, "D", "127.0.0.1:1"),
            MemberChange(ADDRESS, "D", "127.0.0.1:2"),
            MemberChange(DEMOTE, "C", force=True),
            MemberChange(PROMOTE, "C"),
            MemberChange(ADDRESS, "C", third),
        )
        async with open_client(cluster.url(0)) as client, open_client(cluster.url(1)) as operator:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, k UNIQUE)")
            for number, change in enumerate(changes):
                for isolation in ("serializable", "snapshot"):
                    async with client.transaction(isolation=isolation) as transaction:
                        await transaction.execute("INSERT INTO t(k) VALUES (?)", (f"{number}{isolation}",))
                        await operator.change_members(change if isolation == "serializable" else changes[1])
                        await transaction.execute("SELECT count(*) FROM t")
                        await transaction.execute("UPDATE t SET k = k || '!' WHERE k = ?", (f"{number}{isolation}",))
            assert (await client.execute("SELECT count(*) FROM t WHERE k LIKE '%!'")).value() == 2 * len(changes)


async def test_open_transaction_goes_on_over_the_replacement_of_a_dead_voter(tmp_path: Path) -> None:
    """C commits after the transaction began, and its timeline is retired before the transaction ends. The transaction
    commits, unless it is based on that commit.
    """
    with local_cluster(tmp_path / "three") as cluster:
        await ready(cluster)
        async with open_client(cluster.url(0)) as client, open_client(cluster.url(1)) as operator:
            await client.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, k UNIQUE)")
            await client.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
            async with client.transaction() as goes_on:
                assert (await goes_on.execute("SELECT k FROM t WHERE id = 1")).value() == "one"
                with pytest.raises(ConflictError, match="of C has changed table t since"):
                    await rests_on_c(cluster, client, operator)
                await goes_on.execute("INSERT INTO t VALUES (4, 'four')")
            found = await client.execute("SELECT k FROM t ORDER BY id", read="strict")
            assert [k for (k,) in found.rows] == ["one", "of C", "four"]
        await level(cluster)
        cluster.stop()
        judge_files(cluster)


async def rests_on_c(cluster: LocalCluster, client: Client, operator: Client) -> None:
    """Let a transaction read what C changes before it dies, is replaced, and its timeline is retired."""
    async with client.transaction() as loses:
        assert (await loses.execute("SELECT k FROM t WHERE id = 2")).value() == "two"
        await last_word_of_c(cluster)
        successor = free_ports(1)[0]
        await until("C is missed", partial(replaced, operator, f"127.0.0.1:{successor}"))
        del cluster.nodes[2]
        newcomer(cluster, "D", "--voter", port=successor)
        await voters(cluster, "A", "B", "D")
        await until("the timeline of C is retired", partial(retires, operator, "C"))
        await loses.execute("INSERT INTO t VALUES (3, 'three')")


async def last_word_of_c(cluster: LocalCluster) -> None:
    """Let C commit, and kill it when A has that."""
    async with open_client(cluster.url(2, only=True)) as client:
        await client.execute("UPDATE t SET k = 'of C' WHERE id = 2")

    async def is_there() -> bool:
        return bool((await status_of(cluster, 0))["applied"].get("C"))

    await until("A has the commit of C", is_there)
    cluster.nodes[2].kill()


async def replaced(operator: Client, address: str) -> bool:
    """Replace C as soon as it is missed; return whether that is done."""
    try:
        await operator.change_members(MemberChange(REPLACE, "C", address, successor="D"))
    except MembershipError:
        return False
    return True


async def retires(operator: Client, node: str) -> bool:
    """Return whether a timeline is retired; each change of the members retires those that all have."""
    await operator.change_members(MemberChange(ADD, "E", "127.0.0.1:1"))
    await operator.change_members(MemberChange(REMOVE, "E"))
    found = await operator.execute("SELECT value FROM bedrockish_meta WHERE key = 'membership'")
    return node in read_membership(bytes(found.value())).retired


USERS = (
    MemberChange(USER_ADD, "root", role="admin", secret=secret("root")),
    MemberChange(USER_ADD, "rita", role="writer", secret=secret("rita")),
    MemberChange(USER_ADD, "will", role="writer", secret=secret("will")),
    MemberChange(USER_ADD, "tom", secret=secret("tom")),
    MemberChange(USER_GRANT, "tom", role="writer", table="t"),
)
TAKEN = (MemberChange(USER_REVOKE, "will", role="writer"), MemberChange(USER_REVOKE, "tom", role="writer", table="t"))


async def test_open_transaction_goes_on_over_a_change_of_users_unless_it_loses_rights(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "three", settings={"users": {"ann": secret("ann")}})
    cluster.login = "ann:ann@"
    with cluster.running():
        await ready(cluster)
        async with open_client(cluster.url(1)) as operator:
            await operator.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, k UNIQUE)")
            for change in USERS:
                await operator.change_members(change)
            await has_heard(cluster, operator)
            await has_heard(cluster, operator)
            await go_on(cluster, operator)
            for taken in TAKEN:
                for last in ((), ("SELECT 1",)):
                    with pytest.raises(ForbiddenError, match=f"rights of {taken.node} were taken .* did not happen"):
                        await loses_rights(cluster, operator, taken, last)
                    await operator.change_members(replace(taken, action=USER_GRANT))
                    await has_heard(cluster, operator)
                    await has_heard(cluster, operator)
            found = await operator.execute("SELECT count(*), sum(k LIKE '%!') FROM t", read="strict")
            assert found.rows == [(6, 6)]


async def go_on(cluster: LocalCluster, operator: Client) -> None:
    """Change users around an open transaction of rita, who keeps her rights."""
    changes = (
        MemberChange(USER_ADD, "new", role="reader", secret=secret("new")),
        MemberChange(USER_GRANT, "new", role="writer"),
        MemberChange(USER_REVOKE, "new", role="reader"),
        MemberChange(USER_REMOVE, "new"),
        MemberChange(USER_PASSWORD, "rita", secret=secret("rita")),
        MemberChange(USER_GRANT, "rita", role="owner"),
    )
    cluster.login = "rita:rita@"
    async with open_client(cluster.url(0, only=True)) as client:
        for number, change in enumerate(changes):
            async with client.transaction() as transaction:
                await transaction.execute("INSERT INTO t(k) VALUES (?)", (f"{number}",))
                await operator.change_members(change)
                await transaction.execute("UPDATE t SET k = k || '!' WHERE k = ?", (f"{number}",))


async def loses_rights(cluster: LocalCluster, operator: Client, taken: MemberChange, last: tuple[str, ...]) -> None:
    """Take a right from a user in the midst of a transaction, which goes on with some statements and COMMIT."""
    cluster.login = f"{taken.node}:{taken.node}@"
    async with open_client(cluster.url(0, only=True)) as client, client.transaction() as transaction:
        await transaction.execute("INSERT INTO t(k) VALUES (?)", (taken.node,))
        await operator.change_members(taken)
        await has_heard(cluster, operator)
        for statement in last:
            await transaction.execute(statement)


async def has_heard(cluster: LocalCluster, operator: Client) -> None:
    """Wait until A has applied the changes that the operator made at B.

    A COMMIT waits for them anyway; a user's login and first statement are judged by the users that A has.
    """
    told = (await operator.status())["applied"]

    async def there() -> bool:
        applied = (await status_of(cluster, 0))["applied"]
        return all(applied.get(leader, 0) >= tick for leader, tick in told.items())

    await until("A has applied the change", there)
