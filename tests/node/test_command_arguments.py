"""The signature of a command, and its refused arguments, are the same with every Python."""

import sys
from typing import Any, Optional, Union

import pytest

from bedrockish.api.requests import Named
from bedrockish.commands import Command, Transaction, command
from bedrockish.errors import CommandError


def rename(tx: Transaction, number: int, /, name: str | None = None, *, mark: "Mark" = "") -> int:  # type: ignore[name-defined]  # noqa: F821
    return number


def paint(tx: Transaction, colour: Optional[str], layers: Union[int, float] = 1) -> None:  # noqa: UP007, UP045
    pass


def call(what: Command, *args: Any) -> None:
    what.check(Named(what.name, args))


def test_signature_is_printed_as_python_writes_it() -> None:
    assert command(paint).signature.endswith("= 1)")
    assert command(rename).signature.startswith("(number: int, /, name: str | None = None, *, mark: ")


def test_parameter_with_another_annotation_takes_any_argument() -> None:
    """``Mark`` does not exist, so the types of the other parameters are unknown, too."""
    call(command(rename), 1, "ann")
    with pytest.raises(CommandError, match="missing a required"):
        call(command(rename))


def test_types_in_a_union_are_held_however_it_is_written() -> None:
    """``Optional[str]`` is ``str | None``; from Python 3.14 on they are one type, before they were two."""
    call(command(paint), None, 2.5)
    with pytest.raises(CommandError, match="colour should be NoneType or str, not int"):
        call(command(paint), 7)
    with pytest.raises(CommandError, match="layers should be float or int, not str"):
        call(command(paint), "red", "two")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated where they stand")
def test_an_annotation_for_a_type_checker_alone_is_not_evaluated() -> None:
    place: dict[str, Any] = {}
    exec("def greet(tx: Transaction, name: Name, times: int = 1) -> Name: ...", place)
    found = command(place["greet"])
    assert found.signature == "(name: Name, times: int = 1)"
    call(found, "ann", 2)
    with pytest.raises(CommandError, match=r"takes \(name: Name, times: int = 1\): missing a required"):
        call(found)
