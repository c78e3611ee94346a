"""Changes the source of functions for a while, to see who notices.

The text that is replaced must be there exactly once, so a change that no longer fits the code says so.
"""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True)
class Edit:
    """One change: in function ``name`` of a class or module, ``old`` becomes ``new``."""

    owner: type | ModuleType
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """A rule taken away.

    Attributes:
        rule: what is left out, in words.
        options: what the worlds need to have for it to matter; the rest is drawn.
    """

    rule: str
    edits: tuple[Edit, ...]
    options: tuple[tuple[str, object], ...] = ()


def fault(rule: str, *edits: tuple[Any, str, str, str], **options: object) -> Fault:
    """Return a fault of a few edits, each (class or module, function, old text, new text)."""
    return Fault(rule, tuple(Edit(*edit) for edit in edits), tuple(options.items()))


@contextmanager
def in_force(taken: Fault) -> Iterator[None]:
    """Have a fault in the code for a while."""
    before: list[tuple[Any, str, object]] = []
    try:
        for edit in taken.edits:
            function = edit.owner.__dict__[edit.name]
            before.append((edit.owner, edit.name, function))
            setattr(edit.owner, edit.name, _edited(function, edit))
        yield
    finally:
        for owner, name, function in reversed(before):
            setattr(owner, name, function)


def _edited(function: FunctionType, edit: Edit) -> object:
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(edit.old) == 1, f"{edit.old!r} is {source.count(edit.old)} times in {edit.name}"
    found: dict[str, object] = {}
    exec(compile(source.replace(edit.old, edit.new), f"<fault in {edit.name}>", "exec"), function.__globals__, found)
    return found[edit.name]
