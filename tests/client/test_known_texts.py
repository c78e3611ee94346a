"""The caches of functions of a text have results of short texts only, and only the latest ones."""

import pytest

from bedrockish.sqltext.known_texts import KEPT_MAX, KEPT_TEXT_MAX, remembered


@pytest.mark.parametrize(("size", "calls"), [(KEPT_TEXT_MAX, 1), (KEPT_TEXT_MAX + 1, 3)])
def test_only_short_texts_are_remembered_after_parsing(size: int, calls: int) -> None:
    asked = list[str]()

    @remembered
    def length(sql: str) -> int:
        asked.append(sql)
        return len(sql)

    assert [length("x" * size) for _ in range(3)] == [size] * 3
    assert len(asked) == calls


def test_only_the_last_parsed_texts_are_kept() -> None:
    asked = list[str]()

    @remembered
    def length(sql: str) -> int:
        asked.append(sql)
        return len(sql)

    for number in range(KEPT_MAX + 1):
        length(str(number))
    length("0")
    assert asked[-1] == "0"
    length(str(KEPT_MAX))
    assert len(asked) == KEPT_MAX + 2
