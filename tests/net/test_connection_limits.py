"""Connections from one address cannot take all places of a node."""

import pytest

from bedrockish_net.connection_limits import SPEAKERS_MAX, ConnectionLimits
from bedrockish_net.errors import RefusedError


def test_oldest_stranger_of_the_busiest_address_is_disconnected() -> None:
    limits = ConnectionLimits(strangers_max=4)
    gone: list[object] = []
    limits.add_stranger("honest", lambda: gone.append("honest"))
    for number in range(10):
        limits.add_stranger("crowd", lambda number=number: gone.append(number))  # type: ignore[misc]
    assert gone == list(range(7))
    _, said = limits.add_stranger("crowd", lambda: None)
    assert said == "more than 4 connections without HELLO; closed the oldest of crowd"


def test_connection_that_has_sent_hello_is_not_evicted() -> None:
    limits, gone = ConnectionLimits(strangers_max=4), []
    number, _ = limits.add_stranger("honest", lambda: gone.append("honest"))
    limits.begin_admission(number)
    for _ in range(10):
        limits.add_stranger("honest", lambda: gone.append("silent"))
    assert "honest" not in gone
    assert len(gone) == 6
    limits.end_admission()
    limits.remove_stranger(number)
    for _ in range(SPEAKERS_MAX):
        limits.begin_admission(limits.add_stranger("x", lambda: None)[0])
    with pytest.raises(RefusedError, match="being admitted"):
        limits.begin_admission(limits.add_stranger("x", lambda: None)[0])


def test_clients_are_limited_by_address_and_together() -> None:
    limits = ConnectionLimits(clients_max=3, clients_per_address_max=2)
    limits.add_client("a")
    limits.add_client("a")
    with pytest.raises(RefusedError, match="connections_per_address_max"):
        limits.add_client("a")
    limits.add_client("b")
    with pytest.raises(RefusedError, match="connections_max"):
        limits.add_client("c")
    limits.remove_client("a")
    limits.add_client("c")


def test_clients_leave_file_descriptors_for_members() -> None:
    """From ``files_max`` on, descriptors are refused to clients; members may use ``strangers_max`` more."""
    limits = ConnectionLimits(strangers_max=10, files_max=100)
    limits.add_client("1.2.3.4", 99)
    with pytest.raises(RefusedError, match="open files"):
        limits.add_client("1.2.3.4", 100)
    assert not limits.is_crowded(109)
    assert limits.is_crowded(110)
