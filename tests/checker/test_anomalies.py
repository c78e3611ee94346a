"""One bad history for each anomaly, made by hand: the checker finds it, and calls it by its name."""

import pytest

from tests.checker.histories import history
from tools.checker.check import check

BAD = {
    "G0 (dirty write)": """
        p 1-9 update : a x 1; a y 1
        q 1-9 update : a x 2; a y 2
        r 1-9 strict : l x 1 2; l y 2 1
    """,
    "G1a (aborted read)": """
        p 1-2 update! : a x 1
        q 3-4 strict : l x 1
    """,
    "G1b (intermediate read)": """
        p 1-9 update : a x 1; a x 2
        q 1-9 strict : l x 1
        r 1-9 strict : l x 1 2
    """,
    "G1c (circular information flow)": """
        p 1-9 update : a x 1; l y 2
        q 1-9 update : a y 2; l x 1
    """,
    "G-single (read skew)": """
        p 1-9 update : a x 1; a y 2
        q 1-9 strict : l x 1; l y
        r 1-9 strict : l y 2
    """,
    "G2-item (anti-dependency cycle)": """
        p 1-9 update : l x; a y 1
        q 1-9 update : l y; a x 2
        r 10-11 strict : l x 2; l y 1
    """,
    "lost update": """
        p 1-9 update : l x; a x 1
        q 1-9 update : l x; a x 2
        r 10-11 strict : l x 1 2
    """,
    "long fork": """
        p 1-9 update : a x 1
        q 1-9 update : a y 2
        r 1-9 strict : l x 1; l y
        s 1-9 strict : l x; l y 2
    """,
    "stale read (real-time violation)": """
        p 1-2 update : a x 1
        q 3-4 strict : l x
        r 5-6 strict : l x 1
    """,
    "real-time violation": """
        p 1-2 strict : l x 1
        q 3-4 update : a x 1
    """,
    "internal inconsistency": """
        p 1-2 update : a x 1; l x
    """,
    "duplicate append": """
        p 1-2 update : a x 1
        q 3-4 strict : l x 1 1
    """,
    "acknowledged but missing": """
        p 1-2 update : a x 1
        p 3-4 update : a x 2
        e 9-9 final : l x 2
    """,
    "rolled back but present": """
        p 1-2 update! : a x 1
        e 9-9 final : l x 1
    """,
    "incompatible order": """
        p 1-9 update : a x 1
        q 1-9 update : a x 2
        r 1-9 strict : l x 1 2
        s 1-9 strict : l x 2
    """,
    "value from nowhere": """
        p 1-2 strict : l x 7
    """,
    "session violation (read your writes)": """
        p 1-2 update : a x 1
        p 3-4 session : l x
        e 9-9 final : l x 1
    """,
    "session violation (monotonic reads)": """
        p 1-2 update : a x 1
        q 3-4 session : l x 1
        q 5-6 session : l x
    """,
}

GOOD = {
    "nothing": "",
    "two at once": """
        p 1-9 update : l x; a x 1
        q 1-9 update : l x 1; a x 2
        r 10-11 strict : l x 1 2
    """,
    "a read at the same time may see it or not": """
        p 1-9 update : a x 1; a v 2
        q 2-3 strict : l x; l v
        r 4-5 strict : l x 1; l v 2
    """,
    "unknown, and it happened, late": """
        p 1-2 update? : a x 1
        q 3-4 strict : l x
        r 5-6 strict : l x 1
    """,
    "unknown, and it did not happen": """
        p 1-2 update? : a x 1; a v 3
        q 3-4 update : a x 2; l v
        e 9-9 final : l x 2; l v
    """,
    "what an operation that failed has read means nothing": """
        p 1-2 update! : a x 1; l x 1 8 9
        q 1-2 update? : a x 2; l x 8 2
        e 9-9 final : l x
    """,
    "a session read may be old": """
        p 1-2 update : a x 1; a v 1
        q 3-4 session : l x; l v
        q 5-6 session : l x 1; l v 1
        p 7-8 session : l x 1
    """,
    "two sessions may see two unrelated commits in opposite orders": """
        p 1-2 update : a x 1
        q 1-2 update : a y 2
        r 3-4 session : l x 1; l y
        s 3-4 session : l x; l y 2
    """,
    "a session read may be older than an earlier strict read of another session": """
        p 1-2 update : a x 1
        q 3-4 strict : l x 1
        r 5-6 session : l x
    """,
    "a lost answer leaves nothing to a session": """
        p 1-2 update? : a x 1
        p 3-4 session : l x
        e 9-9 final : l x 1
    """,
    "blind writes": """
        p 1-9 update : a v 1
        q 1-9 update : a v 2
        r 10-11 strict : l v 1 2
    """,
}


@pytest.mark.parametrize("name", BAD)
def test_each_anomaly_is_found_and_named(name: str) -> None:
    report = check(history(BAD[name]))
    assert name in report.names, report.describe()


@pytest.mark.parametrize("name", GOOD)
def test_allowed_histories_have_no_findings(name: str) -> None:
    report = check(history(GOOD[name]))
    assert not report.findings, report.describe()


@pytest.mark.parametrize("level", ["session", "strict"])
def test_each_read_level_is_checked_for_its_own_promise(level: str) -> None:
    """At ``session`` the checker allows a fork and an old read; at ``strict`` it reports both as anomalies."""
    text = BAD["long fork"].replace("strict", level)
    assert bool(check(history(text)).findings) is (level == "strict")
    text = BAD["stale read (real-time violation)"].replace("strict", level)
    assert bool(check(history(text)).findings) is (level == "strict")


def test_read_skew_is_an_anomaly_at_level_session_too() -> None:
    report = check(history(BAD["G-single (read skew)"].replace("strict", "session")))
    assert report.names == {"G-single (read skew)"}


def test_checker_finds_a_half_visible_transaction_of_unknown_outcome() -> None:
    """A read saw the first half of the transaction, so the transaction is committed, and its other half is visible."""
    text = """
        p 1-2 update? : a x 1; a y 2
        q 3-4 strict : l x 1
        e 9-9 final : l x 1; l y
    """
    assert check(history(text)).findings
