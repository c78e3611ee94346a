"""A clock has the bits of a clock of Citus, and a node closes time at a lag behind its clock."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedrockish.core.protocol.events import Now
from bedrockish.core.state.clock import FORGET_S, Clock, ClosingLag
from bedrockish.core.state.settings import Settings
from bedrockish_journal.model.clock import (
    BEND_MS,
    CLOCK_LIMIT,
    COUNTER_BITS,
    LATER_BITS,
    WALL_MS_MAX,
    counter,
    milliseconds,
    moved,
    pack,
)

MOMENTS = st.integers(0, WALL_MS_MAX + (1 << 31))
COUNTER_MAX = (1 << COUNTER_BITS) - 1


def test_clock_has_the_documented_layout() -> None:
    """The counter of a clock has 22 bits until July 2037, and then 12 bits, which suffices up to the year 4197."""
    assert pack(BEND_MS - 1, COUNTER_MAX) == (BEND_MS << 22) - 1 == pack(BEND_MS) - 1
    assert datetime.fromtimestamp(BEND_MS / 1000, UTC).year == 2037
    assert datetime.fromtimestamp(WALL_MS_MAX / 1000, UTC).year == 4197
    assert pack(WALL_MS_MAX) + (1 << 53) == CLOCK_LIMIT
    assert (milliseconds(pack(7, 9)), counter(pack(7, 9))) == (7, 9)
    assert pack(8, 0) > pack(7, COUNTER_MAX), "of two clocks the greater integer is later"


ANY_MS = st.integers(0, WALL_MS_MAX)


def begun(value: int = 0, *, follows_wall: bool = True) -> Clock:
    """Return the clock of a node that has no peer to ask for the time."""
    return Clock(Settings(), Now(0.0, 0), value, follows_wall=follows_wall)


def at(clock: Clock, wall_ms: int) -> None:
    """Let the wall show something else."""
    clock.set_now(Now(0.0, wall_ms), needed=0)


@given(ANY_MS, ANY_MS, st.integers(0, (1 << LATER_BITS) - 1))
def test_clocks_are_in_the_order_of_their_moments(one: int, two: int, count: int) -> None:
    assert (one < two) == (pack(one) < pack(two)) == (pack(one, count) < pack(two, count))
    assert (milliseconds(pack(one, count)), counter(pack(one, count))) == (one, count)


@given(ANY_MS, st.integers(0, COUNTER_MAX), st.integers(-100_000, 100_000))
def test_a_clock_is_moved_by_milliseconds_of_the_wall(ms: int, count: int, by_ms: int) -> None:
    """A clock moves alike before, after and across July 2037, and the order of clocks stays."""
    clock = pack(ms, count if ms < BEND_MS else count & (1 << LATER_BITS) - 1)
    assert milliseconds(moved(clock, by_ms)) == ms + by_ms
    assert moved(clock, by_ms) <= moved(clock + 1, by_ms)
    if max(ms, ms + by_ms) < BEND_MS:
        assert moved(clock, by_ms) == clock + (by_ms << 22)


@given(st.sampled_from([BEND_MS - 1, BEND_MS, BEND_MS + 1]), st.integers(-3, 3))
def test_clock_does_not_go_back_where_its_layout_changes(ms: int, by_ms: int) -> None:
    clock = moved(pack(ms), by_ms)
    assert milliseconds(clock) == ms + by_ms
    assert counter(clock) == 0


def test_a_counter_that_overflows_carries_into_the_milliseconds() -> None:
    clock = begun(pack(5, COUNTER_MAX))
    at(clock, 5)
    assert clock.tick() == pack(6, 0)
    assert clock.tick() == pack(6, 1)


@given(
    st.lists(st.one_of(MOMENTS.map(lambda ms: ("tick", ms)), MOMENTS.map(lambda ms: ("hear", pack(ms)))), max_size=40)
)
def test_clock_never_goes_back_and_each_tick_is_new(steps: list[tuple[str, int]]) -> None:
    """The wall clock moves forwards and backwards, by hours; and a restart begins at the ceiling."""
    clock = begun()
    last = 0
    for what, value in steps:
        if what == "tick":
            at(clock, value)
            given_ = clock.tick()
            assert given_ > last
            assert given_ >= pack(value) or not clock.follows_wall
            assert clock.follows_wall or clock.has_only_counted, "beyond the end of the wall it has only counted"
        else:
            clock.adjust(value)
            assert clock.value >= max(last, value)
        last = clock.value
    assert begun(last).tick() == last + 1


def test_clock_that_ignores_the_wall_only_counts() -> None:
    clock = begun(pack(5), follows_wall=False)
    at(clock, 1_000_000)
    assert clock.tick() == pack(5) + 1
    assert clock.read() == pack(5) + 1
    clock.adjust(pack(9))
    assert clock.tick() == pack(9) + 1
    clock.follow_wall(follows=True)
    assert clock.tick() == pack(1_000_000)
    clock.follow_wall(follows=False)
    assert clock.tick() == pack(1_000_000) + 1


def settle(lag: ClosingLag, start: float, seconds: float) -> float:
    """Let time pass, with a reading every 50 ms; return the time."""
    moment = start
    while moment < start + seconds:
        moment += 0.05
        lag.read(moment, int(moment * 1000))
    return moment


def test_closing_lag_shrinks_to_its_minimum_in_a_quiet_cluster() -> None:
    settings = Settings()
    lag = ClosingLag(settings)
    assert lag.seconds == settings.closing_lag_ms / 1000, "nothing is known at first"
    moment = settle(lag, 10.0, 10 * FORGET_S)
    assert lag.seconds == settings.closing_lag_ms_min / 1000
    assert 0 <= moment - lag.closable(moment) / 1000 - lag.seconds < 0.06


def test_late_message_widens_the_closing_lag_at_once_and_decays_slowly() -> None:
    lag = ClosingLag(Settings(closing_lag_ms=1_000))
    moment = settle(lag, 10.0, 10 * FORGET_S)
    lag.late(moment, int((moment - 0.3) * 1000))
    assert 0.5 < lag.seconds < 0.7
    moment = settle(lag, moment, FORGET_S)
    assert 0.2 < lag.seconds < 0.4
    lag.late(moment, int((moment - 30) * 1000))
    assert lag.seconds == 1.0, "never further than it may"
    settle(lag, moment, 20 * FORGET_S)
    lag.expect()
    assert lag.seconds == 1.0, "somebody has asked for a clock that is now"


def test_a_clock_that_only_counts_is_closed_as_well() -> None:
    """After a while the node closes the last counted clock, although the clock stands still."""
    lag = ClosingLag(Settings())
    moment = 0.0
    for _ in range(400):
        moment += 0.05
        lag.read(moment, 7)
    assert lag.closable(moment) == 7


def test_leap_of_a_majority_is_not_followed_until_the_next_start() -> None:
    """Two of three wall clocks jump an hour ahead and back; the cluster's clock follows neither jump."""
    settings = Settings(clock_leap_ms=600_000)
    start, hour = 1_700_000_000_000, 3_600_000
    clock = Clock(settings, Now(0.0, start))
    for second, ahead in ((0, 0), (1, 0), (2, hour), (3, hour), (4, 0)):
        clock.hear_walls([start + ahead, start + ahead])
        clock.set_now(Now(float(second), start + 1_000 * second), 1)
        clock.tick()
        assert clock.leap_ms == ahead
        assert abs(clock.majority_wall_ms - start - 1_000 * second) <= 10
        assert milliseconds(clock.value) - start <= 1_000 * second + settings.clock_offset_ms
    clock.hear_walls([start + 500_000, start + 500_000])
    clock.set_now(Now(5.0, start + 5_000), 1)
    assert (clock.leap_ms, clock.majority_wall_ms) == (0, start + 505_000), "smaller ones are followed"
    again = Clock(settings, Now(0.0, start))
    again.hear_walls([start + hour, start + hour])
    again.set_now(Now(0.0, start), 1)
    assert again.majority_wall_ms == start + hour


@pytest.mark.parametrize("wrong_ms", [0, -3_600_000, 3_600_000])
def test_age_of_a_clock_is_measured_by_most_voters_walls(wrong_ms: int) -> None:
    start = 1_700_000_000_000
    clock = Clock(Settings(), Now(0.0, start + wrong_ms))
    clock.hear_walls([start, start])
    clock.set_now(Now(1.0, start + 1_000 + wrong_ms), 1)
    assert clock.age_ms(pack(start), Now(1.5, start + 1_500 + wrong_ms)) == 1_500
    assert clock.age_ms(0, Now(1.5, start + 1_500 + wrong_ms)) is None


def test_wall_clocks_heard_in_turn_at_a_start_do_not_count_as_a_leap() -> None:
    """The first wall clock may be far behind; once the node knows the third, it follows the middle one."""
    start, hour = 1_700_000_000_000, 3_600_000
    clock = Clock(Settings(clock_leap_ms=600_000), Now(0.0, start))
    clock.hear_walls([start - hour])
    clock.set_now(Now(0.0, start), 1)
    assert clock.majority_wall_ms == start - hour
    clock.hear_walls([start - hour, start + 2 * hour])
    clock.set_now(Now(1.0, start + 1_000), 1)
    assert (clock.leap_ms, clock.majority_wall_ms) == (0, start + 1_000)


def test_walls_that_return_after_they_were_set_back_are_followed() -> None:
    """The cluster's clock stood still until the walls were right again, so that it does not leap then."""
    start, hour = 1_700_000_000_000, 3_600_000
    clock = Clock(Settings(clock_leap_ms=600_000), Now(0.0, start))
    for second, ahead in ((0, 0), (1, -hour), (1_200, -hour), (1_201, 0), (1_202, hour)):
        clock.hear_walls([start + ahead, start + ahead])
        clock.set_now(Now(float(second), start + 1_000 * second + ahead), 1)
        clock.read()
        assert clock.leap_ms == max(0, ahead), "an hour ahead of the right time is a leap"
        assert milliseconds(clock.value) == start + (
            0 if ahead < 0 else 1_000 * min(second, 1_202) + 5_000 * (ahead > 0)
        )


def test_walls_that_were_set_back_for_good_limit_later_leaps() -> None:
    """The clock has followed the earlier pace again for an hour: that the walls were ahead before does not matter."""
    start, hour = 1_700_000_000_000, 3_600_000
    clock = Clock(Settings(clock_leap_ms=600_000), Now(0.0, start))
    for second, ahead, leap in ((0, 0, 0), (1, -hour, 0), (3_700, -hour, 0), (3_701, 0, hour)):
        clock.hear_walls([start + ahead, start + ahead])
        clock.set_now(Now(float(second), start + 1_000 * second + ahead), 1)
        clock.read()
        assert clock.leap_ms == leap


def test_walls_years_ahead_of_the_file_are_not_followed_at_a_start() -> None:
    """Otherwise the others would refuse the node's clock, even after its machine's clock was corrected."""
    start, year = 1_700_000_000_000, 366 * 86_400_000
    clock = Clock(Settings(), Now(0.0, start), pack(start))
    for second, ahead in ((0, 70 * year), (10, 70 * year), (11, 70 * year), (20, 60_000), (21, 60_000)):
        clock.hear_walls([start + ahead, start + ahead])
        clock.set_now(Now(float(second), start + 1_000 * second + ahead), 1)
        clock.read()
        assert (clock.leap_ms > 0) == (ahead > year)
        assert milliseconds(clock.value) <= start + 1_000 * second + (5_000 if ahead > year else ahead)
    assert milliseconds(clock.value) == start + 81_000, "walls within a year are followed without another start"
    new = Clock(Settings(), Now(0.0, start), pack(1_000))
    new.hear_walls([start])
    new.set_now(Now(0.0, start), 1)
    assert new.majority_wall_ms == start, "a clock that has only counted follows the walls"
    raised = Clock(Settings(clock_leap_ms=71 * year), Now(0.0, start), pack(start))
    raised.hear_walls([start + 70 * year])
    raised.set_now(Now(0.0, start + 70 * year), 1)
    assert raised.majority_wall_ms == start + 70 * year
