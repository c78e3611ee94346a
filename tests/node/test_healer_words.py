"""A node's report about a transaction to a node whose tables it does not fit."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bedrockish.core.protocol.health import DAMAGED_TABLES, Mode
from bedrockish.core.protocol.messages import Approve, Begin, Rollback
from bedrockish.errors import UnavailableError, UsageError
from bedrockish.node.repair.healer import Healer
from bedrockish.node.repair.verdict import ROLLED_BACK, UNKNOWN, Ruling
from bedrockish_journal.model.transaction import Txid
from tests.core.net import Net, add


async def test_transaction_given_up_by_its_leader_is_not_rolled_back_without_a_majority() -> None:
    """Other nodes may have the leader's earlier promise and commit the transaction. If a node with right tables learned
    a rollback, it would serve again, and then meet the entry once more.
    """
    net = Net("ABC")
    net.kept = {Begin, Approve, Rollback}
    net.ask("A", add("one", "k"))
    core = net.places["A"].core
    (txid,) = core.coordinator.attempts.open
    engine = SimpleNamespace(entries=SimpleNamespace(void={}), journal=SimpleNamespace(has=lambda _txid: False))
    nothing = cast(Any, None)
    healer = Healer(core, cast(Any, engine), nothing, nothing, nothing, nothing, nothing, nothing)

    async def outcome() -> object:
        return (await healer.entry({"txid": str(txid)}))["outcome"]

    core.state.set_now(net.now)
    core.coordinator.attempts.give_up(core.coordinator.attempts.open[txid])
    assert core.state.votes.by_txid[txid].accepted == (1, False)
    assert await outcome() == UNKNOWN
    net.places["A"].perform(core._finish_step())
    net.kept = set()
    net.run(3.0)
    assert await outcome() == ROLLED_BACK


async def test_sole_voter_reports_no_outcome_of_a_transaction_that_it_may_still_commit() -> None:
    net = Net("A")
    core = net.places["A"].core
    engine = SimpleNamespace(entries=SimpleNamespace(void={}), journal=SimpleNamespace(has=lambda _txid: False))
    nothing = cast(Any, None)
    healer = Healer(core, cast(Any, engine), nothing, nothing, nothing, nothing, nothing, nothing)
    lost, pending = Txid(core.state.clock.safe + 1, "A"), Txid(core.state.clock.safe + 2, "A")
    core.state.votes.pending.transactions[pending] = cast(Any, None)
    assert healer._outcome(lost) == ROLLED_BACK
    assert healer._outcome(pending) == UNKNOWN
    core.coordinator.rollbacks.rolling[pending] = set()
    assert healer._outcome(pending) == ROLLED_BACK
    assert healer._outcome(Txid(lost.clock, "B")) == UNKNOWN


@pytest.mark.parametrize("source", ["Z", ["A"], {"A": 1}, 5, None])
async def test_repair_from_a_node_that_is_no_other_member_is_refused(source: object) -> None:
    nothing = cast(Any, None)
    healer = Healer(Net("AB").places["A"].core, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    with pytest.raises(UsageError, match="there is no other member"):
        await healer.repair({"from": source})


async def test_damaged_node_tries_each_range_of_a_comparison_once() -> None:
    """The node applies nothing until then, so that a further try would lack the same rows."""
    options: dict[str, object] = {}

    async def compare(_nodes: list[str], **given: object) -> None:
        options.update(given)
        raise UnavailableError("none answers")

    async def fits_journal() -> tuple[bool, str]:
        return True, ""

    core = Net("AB").places["A"].core
    core.state.health.set_alarm(DAMAGED_TABLES, Mode.DAMAGED, "damaged", table="t")
    nothing = cast(Any, None)
    scrubber = cast(Any, SimpleNamespace(compare=compare, fits_journal=fits_journal))
    healer = Healer(core, nothing, nothing, nothing, scrubber, nothing, nothing, nothing)
    verdict, _ = await healer.examine()
    assert verdict.ruling is Ruling.SOUND
    assert options == {"tries": 1}
