"""Connections from one address cannot take all places of a node."""

import pytest

from bedrockish_net.doors import SPEAKERS_MAX, Doors
from bedrockish_net.errors import RefusedError


def test_oldest_stranger_of_the_busiest_address_is_disconnected() -> None:
    doors = Doors(strangers_max=4)
    gone: list[object] = []
    doors.come("honest", lambda: gone.append("honest"))
    for number in range(10):
        doors.come("crowd", lambda number=number: gone.append(number))  # type: ignore[misc]
    assert gone == list(range(7))
    _, said = doors.come("crowd", lambda: None)
    assert said == "more than 4 connections without HELLO; closed the oldest of crowd"


def test_connection_that_has_sent_hello_is_not_evicted() -> None:
    doors, gone = Doors(strangers_max=4), []
    number, _ = doors.come("honest", lambda: gone.append("honest"))
    doors.speak(number)
    for _ in range(10):
        doors.come("honest", lambda: gone.append("silent"))
    assert "honest" not in gone
    assert len(gone) == 6
    doors.answered()
    doors.go(number)
    for _ in range(SPEAKERS_MAX):
        doors.speak(doors.come("x", lambda: None)[0])
    with pytest.raises(RefusedError, match="being admitted"):
        doors.speak(doors.come("x", lambda: None)[0])


def test_clients_are_limited_by_address_and_together() -> None:
    doors = Doors(clients_max=3, clients_per_address_max=2)
    doors.enter("a")
    doors.enter("a")
    with pytest.raises(RefusedError, match="connections_per_address_max"):
        doors.enter("a")
    doors.enter("b")
    with pytest.raises(RefusedError, match="connections_max"):
        doors.enter("c")
    doors.leave("a")
    doors.enter("c")


def test_clients_leave_file_descriptors_for_members() -> None:
    """A member connects with a descriptor that is refused to a client; strangers have a few more than members."""
    doors = Doors(strangers_max=10, files_max=100)
    doors.enter("1.2.3.4", 99)
    with pytest.raises(RefusedError, match="open files"):
        doors.enter("1.2.3.4", 100)
    assert not doors.is_crowded(109)
    assert doors.is_crowded(110)
