"""The map of the code follows a real transaction."""

import re
from pathlib import Path

import pytest

from tests.test_tidy import ROOT
from tools.path_of import first_calls, record, shortest

PAGE = (ROOT / "docs" / "architecture.md").read_text()
TRIES = 4
STOP = re.compile(r"^\d+\. `([\w/.]+)` `([\w.]+)`", re.MULTILINE)


def test_a_map_is_short() -> None:
    """A long list would not be read to its end."""
    assert 10 <= len(STOP.findall(PAGE)) <= 15


@pytest.mark.cluster
async def test_a_real_insert_goes_from_stop_to_stop(tmp_path: Path) -> None:
    """Every function of the list is called, and for the first time in the order of the list.

    Other work of a node, such as the flush of a heartbeat's batch, may call one of them early in some runs.
    """
    stops = STOP.findall(PAGE)
    early = [("", "")]
    for number in range(TRIES):
        place = tmp_path / str(number)
        place.mkdir()
        way = first_calls(shortest(await record(place)))
        missing = [stop for stop in stops if stop not in way]
        assert not missing
        places = [way.index(stop) for stop in stops]
        early = [stops[n] for n in range(1, len(stops)) if places[n] < places[n - 1]]
        if not early:
            return
    raise AssertionError(f"not once in {TRIES} times in this order: {early}")
