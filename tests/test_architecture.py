"""The map of the code leads where a real transaction goes."""

import re
from pathlib import Path

import pytest

from tests.test_tidy import ROOT
from tools.path_of import first_calls, record

PAGE = (ROOT / "docs" / "architecture.md").read_text()
STOP = re.compile(r"^\d+\. `([\w/.]+)` `([\w.]+)`", re.MULTILINE)


def test_a_map_is_short() -> None:
    """Whoever reads it shall get to its end."""
    assert 10 <= len(STOP.findall(PAGE)) <= 20


@pytest.mark.cluster
async def test_a_real_insert_goes_from_stop_to_stop(tmp_path: Path) -> None:
    """Every function of the list is called, and for the first time in the order of the list."""
    way = first_calls(await record(tmp_path))
    stops = STOP.findall(PAGE)
    missing = [stop for stop in stops if stop not in way]
    assert not missing
    places = [way.index(stop) for stop in stops]
    assert [stops[n] for n in range(1, len(stops)) if places[n] < places[n - 1]] == []
