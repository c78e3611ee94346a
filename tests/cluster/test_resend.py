"""A command sent again in a new call, on real nodes: one definite answer for all its attempts."""

import uuid
from pathlib import Path

import pytest
import trio

from bedrockish import open_client
from bedrockish.client.trio_client import Client
from bedrockish.errors import ConstraintError, OutcomeUnknownError, UsageError
from tests.cluster.story import ready
from tools.cluster import LocalCluster

pytestmark = pytest.mark.cluster
INSERT = "INSERT INTO payment VALUES (?, ?)"


async def resend_until_known(client: Client, values: tuple[int, int], command: str) -> None:
    """Send an INSERT again until its outcome is known: a node that may lag does not give up the command for good."""
    with trio.fail_after(60):
        while True:
            try:
                await client.execute(INSERT, values, command=command, resend=True)
                break
            except OutcomeUnknownError:
                await trio.sleep(0.05)


async def test_a_resend_gets_the_first_answer_or_an_error_for_good(cluster: LocalCluster, tmp_path: Path) -> None:
    await ready(cluster)
    async with open_client(cluster.url()) as first, open_client(cluster.url(1)) as second:
        await first.execute("CREATE TABLE payment(id INTEGER PRIMARY KEY, amount INTEGER)")
        done, never = str(uuid.uuid4()), str(uuid.uuid4())
        place = (await first.execute(INSERT, (1, 100), command=done)).place
        # The first attempt was committed, so every node repeats its answer.
        again = await second.execute(INSERT, (1, 100), command=done, resend=True)
        assert (again.place, again.rowcount) == (place, 1)
        # Another row has the key now, so this command cannot commit, and after the error it never will.
        with pytest.raises(ConstraintError):
            await resend_until_known(second, (1, 5), never)
        await first.execute("DELETE FROM payment")
        with pytest.raises(UsageError, match=f"{never} was settled before it happened"):
            await first.execute(INSERT, (1, 5), command=never)
        assert (await second.execute("SELECT count(*) FROM payment", read="strict")).value() == 0
