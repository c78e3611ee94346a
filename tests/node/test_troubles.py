"""The table of troubles: each trouble is found, named in its order, and reported after its delay."""

import re
from typing import Any

import pytest

from bedrockish.node.admin.troubles import KINDS, Troubles, not_ready, reaches

NODE = {"up": True, "silent_ms": 20, "role": "voter", "applied": {"A": 5}, "trouble": None, "wall_offset_ms": 3}
WELL: dict[str, Any] = {
    "node": "A",
    "trouble": None,
    "mode": "serving",
    "alarms": {},
    "quorum": 2,
    "applied": {"A": 5},
    "nodes": {"A": {**NODE, "silent_ms": 0, "wall_offset_ms": 0}, "B": NODE, "C": NODE},
    "in_doubt": [],
    "safe_lag_ms": 700,
    "workers": {"places": 4, "running": 4, "waiting": 0, "stuck": 0},
    "disk": {"free_bytes": 50 << 30, "total_bytes": 100 << 30},
    "certificates": {"a.pem": 200 * 86_400.0},
    "wall_s": 100 * 86_400.0,
    "left_alone": {},
    "internal_errors_recent": 0,
    "database": "a.db",
}


def others(**changes: Any) -> dict[str, Any]:
    """Return the status in which B has these changes."""
    return {"nodes": {**WELL["nodes"], "B": {**NODE, **changes}}}


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("out_of_service", {"trouble": "node A is new and still catching up"}, "catching up"),
    ("cannot_write", {"waits_for": "its disk is full"}, "its disk is full"),
    ("no_quorum", {"nodes": {n: {**NODE, "up": n == "A"} for n in "ABC"}}, "1 voter is in reach, and 2 are needed"),
    ("no_quorum", {"quorum": 3} | others(silent_ms=9_000), "2 voters are in reach, and 3 are needed"),
    ("read_only", {"mode": "read-only", "alarms": {"disk_full": {"reason": "the disk is full"}}}, "the disk is full"),
    ("behind", others(applied={"A": 5, "B": 900}), "900 commits are still to be fetched"),
    (
        "one_voter",
        {"quorum": 1, "nodes": {n: {**NODE, "role": "voter" if n == "A" else "learner"} for n in "AB"}},
        "A is",
    ),
    ("disk_filling", {"disk": {"free_bytes": 1 << 30, "total_bytes": 100 << 30}}, "1024 MiB left, 1 %"),
    ("unproven_copy", {"alarms": {"unproven_copy": {"reason": "not compared"}}}, "not compared"),
    ("journal_damaged", {"journal_damaged": {"A5": "its hash is another"}}, "A5: its hash is another"),
    ("in_doubt", {"in_doubt": [{"txid": "9B", "leader": "B", "age_ms": 11_000}]}, "9B, led by B, .* for 11 s"),
    ("safe_time", {"safe_lag_ms": 20_000} | others(report_lag_ms=19_000), "not advanced for 20 s; it waits for B"),
    ("clock_skew", others(wall_offset_ms=-60_000), "clock of B is 60.0 s behind"),
    ("clock_skew", others(wall_offset_ms=94_608_000_000), "clock of B is 1095 days ahead"),
    ("clock_skew", {"nodes": {n: {**NODE, "wall_offset_ms": -60_000} for n in "ABC"}}, "this machine.* ahead of most"),
    ("clock_ahead", {"clock_ahead_ms": 3_600_000}, "cluster's clock is 60 minutes ahead of most machines'"),
    ("clock_leap", {"clock_leap_ms": 3_600_000}, "clocks have leapt ahead by 60 minutes, .* does not follow"),
    ("workers_busy", {"workers": {"places": 4, "running": 4, "waiting": 3, "stuck": 0}}, "3 requests wait"),
    ("workers_busy", {"workers": {"places": 4, "running": 2, "waiting": 0, "stuck": 2}}, "2 do not stop"),
    ("files", {"files": {"open": 900, "max": 824}}, "900 files and connections"),
    ("memory_full", {"memory": {"recently_refused": 7, "taken_bytes": 1 << 30, "max_bytes": 1 << 30}}, "1024 of 1024"),
    (
        "wal_held",
        {"wal_held": {"bytes": 500 << 20, "readers": ["77 (python, stopped)"]}},
        "500 MiB, .*: 77 .python, st",
    ),
    ("wal_held", {"wal_held": {"bytes": 500 << 20, "readers": []}}, "a long read of this node"),
    ("address", others(up=False, silent_ms=100, address="b:1"), "B is heard, and does not answer at its address, b:1"),
    (
        "address",
        {"nodes": {n: {**NODE, "silent_ms": 4_000 * (n != "A"), "address": f"{n}:1"} for n in "ABC"}},
        "none of them reaches this node at .* they know, A:1",
    ),
    ("node_away", others(silent_ms=15_000), "B has not been heard for 15 s"),
    (
        "node_away",
        others(silent_ms=15_000, up=False, unreachable="certificate has expired"),
        r"B has not been heard for 15 s \(certificate has expired\)",
    ),
    ("node_behind", {"applied": {"A": 999}} | others(), "B lacks 994 commits"),
    ("node_slow", others(report_lag_ms=4_000), "messages of B are 4.0 s old"),
    ("node_trouble", others(up=False, trouble="another file"), "B: another file"),
    ("nonsense", {"left_alone": {"C": 12.0}}, "C sends messages that cannot be read"),
    (
        "upgrade_unfinished",
        {"level": 2, "cluster_level": 1} | others(level=1),
        "at release level 1, .* B has reported 1",
    ),
    ("certificate", {"certificates": {"a.pem": 110 * 86_400.0}}, "a.pem expires in 10 days"),
    ("certificate", {"certificates": {"a.pem": 86_400.0}}, "a.pem has expired"),
    ("certificate", {"certificate_fault": "a.pem: it names B"}, "^a.pem: it names B$"),
    ("certificate", {"certificate_fault": "x", "certificates": {"a.pem": 86_400.0}}, "^a.pem has expired$"),
    ("certificate", {"peer_certificates": {"B": 86_400.0}}, "the certificate of B has expired"),
    ("disk_slow", {"sync_ms": 4_990}, "the disk takes 5.0 s for each sync"),
    ("disk_failing", {"disk_errors_recent": 2, "disk_error_last": "at a backup"}, "2 times .* last one: at a backup"),
    ("machine_limit", {"limit_errors_recent": 2, "limit_error_last": "no thread"}, "2 times .* last one: no thread"),
    ("internal_errors", {"internal_errors_recent": 2, "internal_error_last": "TypeError"}, "2 in .*TypeError"),
]


@pytest.mark.parametrize(("code", "changes", "words"), CASES)
def test_each_trouble_is_reported_after_its_delay(code: str, changes: dict[str, Any], words: str) -> None:
    troubles, kind = Troubles(), KINDS[code]
    assert troubles.find(WELL, 0.0) == []
    found = {one["code"]: one for one in troubles.find(WELL | changes, 100.0)}
    assert (code in found) is (kind.after_s == 0)
    late = troubles.find(WELL | changes, 100.0 + kind.after_s)
    told = {one["code"]: one for one in late}[code]
    assert re.search(words, told["text"])
    assert told["do"] == kind.do
    assert (told["text"] in not_ready({"troubles": late})) is kind.useless
    assert [one["code"] for one in late] == [code for code in KINDS if code in {one["code"] for one in late}]
    assert troubles.find(WELL, 300.0) == []
    assert (code in {one["code"] for one in troubles.find(WELL | changes, 301.0)}) is (kind.after_s == 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "damaged", "trouble": "a page is damaged"},
        {"mode": "repairing", "trouble": "a page is damaged"},
        {"mode": "read-only", "blocked": ["B-123"]},
        {"applied": {"A": 5}, "nodes": {**WELL["nodes"], "B": {**NODE, "applied": {"A": 5000}}}},
    ],
)
def test_node_that_delays_its_own_safe_time_does_not_advise_to_remove_voters(changes: dict[str, Any]) -> None:
    stands = WELL | {"safe_lag_ms": 20_000}
    assert "safe_time" in lasting(stands)
    assert "safe_time" not in lasting(stands | changes)


def lasting(status: dict[str, Any]) -> dict[str, str]:
    """Return the text of each trouble that there is when this has lasted."""
    troubles = Troubles()
    troubles.find(status, 100.0)
    return {one["code"]: one["text"] for one in troubles.find(status, 200.0)}


def test_clock_ahead_does_not_hide_a_slow_node() -> None:
    """The ages of safe time and of messages are measured by most voters' clocks, so a wrong clock raises none."""
    stands: dict[str, Any] = {"wall_offset_ms": -3_600_000}
    ahead = WELL | {"nodes": {n: {**NODE, **stands} for n in "BC"} | {"A": NODE}}
    assert set(lasting(ahead)) == {"clock_skew"}
    slow = ahead | {"nodes": ahead["nodes"] | {"B": {**NODE, **stands, "report_lag_ms": 12_000}}}
    told = lasting(slow | {"safe_lag_ms": 15_000})
    assert set(told) == {"clock_skew", "safe_time", "node_slow"}
    assert told["safe_time"] == "safe time has not advanced for 15 s; it waits for B"
    assert told["node_slow"] == "the messages of B are 12.0 s old when they arrive"


def test_a_node_that_joins_is_not_among_the_members_yet() -> None:
    """The command asks the joining node for its troubles, even if no peer reaches it."""
    nodes = {name: {**NODE, "silent_ms": 4_000, "address": f"{name}:1"} for name in "BC"}
    found = Troubles().find(WELL | {"nodes": nodes, "trouble": "node A is new and still catching up"}, 100.0)
    assert found[0]["code"] == "out_of_service"


def test_trouble_table_has_all_codes_and_lists_the_worst_first() -> None:
    assert {code for code, _, _ in CASES} == set(KINDS)
    first = [kind.useless for kind in KINDS.values()]
    assert first == sorted(first, reverse=True), "what makes a node of no use is named first"


def test_status_of_an_older_node_can_be_read() -> None:
    assert not_ready({"trouble": None}) == []
    assert reaches({"up": True, "silent_ms": 0})


def test_learner_with_an_unproven_copy_is_ready() -> None:
    """The node answers reads, and reports that it would accept no writes as a voter."""
    alarms = {"unproven_copy": {"reason": "not compared"}}
    voter = WELL | {"mode": "read-only", "alarms": alarms}
    learner = voter | {"nodes": {**WELL["nodes"], "A": {**WELL["nodes"]["A"], "role": "learner"}}}
    assert not_ready({"troubles": Troubles().find(voter, 100.0)})
    assert not not_ready({"troubles": Troubles().find(learner, 100.0)})


def test_node_whose_messages_are_as_late_as_its_clock_seems_behind_is_slow() -> None:
    """An operator must not set a clock that is right."""
    late = {**NODE, "wall_offset_ms": -5_200, "report_lag_ms": 5_500}
    assert set(lasting(WELL | {"nodes": {"A": NODE, "B": NODE, "C": late}})) == {"node_slow"}
    behind = {**NODE, "wall_offset_ms": -5_200, "report_lag_ms": 100}
    assert set(lasting(WELL | {"nodes": {"A": NODE, "B": NODE, "C": behind}})) == {"clock_skew"}
