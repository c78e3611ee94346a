"""The thread that regularly maintains objects of a program."""

import logging
import threading

import pytest

from bedrockish.common.keeper import Keeper
from bedrockish.errors import UnavailableError


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


def test_keeper_starts_later_when_the_machine_gave_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a program that once meets the limit of threads would have no keeper, which releases its snapshots."""
    called = threading.Event()
    keeper = Keeper[Kept]("test", 0.001, lambda _one, _elapsed_s: called.set())

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    kept = Kept()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(UnavailableError, match=r"further thread.+nothing happened"):
            keeper.add(kept)
    keeper.add(kept)
    assert called.wait(60)
