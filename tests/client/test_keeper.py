"""The thread that regularly maintains objects of a program."""

import logging
import threading

import pytest

from bedrockish.common.keeper import Keeper


class Kept:
    """An object that the keeper maintains."""


def test_keeper_still_calls_others_after_one_object_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound, looks, enough = Kept(), Kept(), list[Kept](), threading.Event()

    def look(one: Kept, _elapsed_s: float) -> None:
        if one is broken:
            raise RuntimeError("it is broken")
        looks.append(one)
        if len(looks) == 3:
            enough.set()

    keeper = Keeper("test", 0.001, look)
    keeper.add(broken)
    keeper.add(sound)
    assert enough.wait(60)
    assert set(looks) == {sound}
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "it is told once"
