"""Damaged rows at nodes of the simulator are found and repaired, and no commit is based on them."""

from collections import Counter

from bedrockish.core.protocol.records import Vote
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import Txid
from tools.sim.disk import ALARM, Image
from tools.sim.options import Options, draw_hard_options, draw_wide_options
from tools.simulate import run_seed


def test_damaged_row_is_found_and_repaired_in_hard_worlds() -> None:
    """A row is damaged every few commits, in worlds with all other faults."""
    total: Counter[str] = Counter()
    for seed in range(1, 10):
        options = draw_hard_options(seed).with_(flip_every_s=0.03, alter=0.0, load_s=2.0, delay_ms=2.0, sync_ms=1.0)
        broken, world = run_seed(options.with_(voters=max(3, options.voters), closing_lag_ms=100))
        assert broken is None, f"seed {seed}: {broken}"
        total.update(world.counts)
    assert total["rows damaged"] > 100
    assert total["transactions doubted"] > 10
    assert total["nodes damaged"] > 10
    assert total["filled again"] > 10


def test_a_quarter_of_the_drawn_worlds_has_damaged_rows() -> None:
    """A quarter of the worlds has them, and never together with schema changes."""
    for draw in (draw_wide_options, draw_hard_options):
        drawn = [draw(seed) for seed in range(1, 401)]
        damaged = [options for options in drawn if options.flip_every_s]
        assert 60 < len(damaged) < 140
        assert not any(options.alter for options in damaged)


def test_unreadable_row_is_found_and_repaired_in_hard_worlds() -> None:
    """A statement, a comparison or a commit that reads such a row stops its node, which fills itself again."""
    total: Counter[str] = Counter()
    for seed in range(1, 4):
        options = draw_hard_options(seed).with_(flip_every_s=0.03, unreadable=1.0, alter=0.0, load_s=2.0, delay_ms=2.0)
        broken, world = run_seed(options.with_(voters=max(3, options.voters), compare_ms=5.0, closing_lag_ms=100))
        assert broken is None, f"seed {seed}: {broken}"
        total.update(world.counts)
    assert total["nodes damaged"] > 5
    assert total["filled again"] > 5
    assert not total["transactions doubted"]  # no transaction is compared with such a row


def test_read_of_undetected_damage_is_allowed() -> None:
    """The certification of a strict read shows that it is recent, not that its rows are undamaged."""
    told = 0
    for seed in range(1, 6):
        broken, world = run_seed(Options(seed, keys=3, hot=0.9, flip_every_s=0.1, scrub_s=20.0, load_s=2.0))
        assert broken is None, f"seed {seed}: {broken}"
        told += len(world.flips.misled)
    assert told > 0


def test_refilled_file_keeps_the_nodes_promises() -> None:
    """The file keeps its votes, the greater of two promises of time, and its count of batches; the alarm ends."""
    txid = Txid(5, "A")
    own = Image(Membership(0, {}), votes={txid: Vote(txid, None, promised=3)}, batches=7)
    own.meta = {ALARM: b"damaged", "cut": 9, "clock_ceiling": 4, "safe": 2, "lost": "an older file"}
    other = Image(Membership(1, {}), meta={"cut": 3, "clock_ceiling": 8, "safe": 3, "joining": b"x"}, batches=99)
    filled = other.filled(own)
    assert filled.votes == own.votes
    assert filled.meta == {"cut": 9, "clock_ceiling": 8, "safe": 3, "lost": "an older file"}
    assert (filled.batches, filled.membership.version) == (7, 1)


def test_damaged_world_is_the_same_in_each_run() -> None:
    """The printed events contain no address of an object."""
    options = Options(2, keys=3, hot=0.9, flip_every_s=0.05, load_s=1.0)
    broken, world = run_seed(options, twice=True)
    assert broken is None, broken
    assert world.counts["nodes damaged"] > 0
