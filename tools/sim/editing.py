"""Changes the source of functions for a while, to see who notices.

The text that is replaced must be there exactly once, so a change that no longer fits the code says so.
"""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
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


@dataclass(frozen=True)
class Moment:
    """A fault and its detector: ``module:function`` of a test without arguments, or ``trace NAME``."""

    fault: Fault
    noticed: str


def fault(rule: str, *edits: tuple[Any, str, str, str], **options: object) -> Fault:
    """Return a fault of a few edits, each (class or module, function, old text, new text)."""
    return Fault(rule, tuple(Edit(*edit) for edit in edits), tuple(options.items()))


@contextmanager
def in_force(taken: Fault) -> Iterator[None]:
    """Have a fault in the code for a while. The invariants of each node are asserted as without it."""
    before: dict[FunctionType, CodeType] = {}
    sources: dict[FunctionType, str] = {}
    try:
        for edit in taken.edits:
            function = edit.owner.__dict__[edit.name]
            source = sources.get(function) or textwrap.dedent(inspect.getsource(function))
            before.setdefault(function, function.__code__)
            assert source.count(edit.old) == 1, f"{edit.old!r} is {source.count(edit.old)} times in {edit.name}"
            sources[function] = source.replace(edit.old, edit.new)
            # In place: others have imported it by its name.
            function.__code__ = _made(function, sources[function]).__code__
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


def _made(function: FunctionType, source: str) -> FunctionType:
    """Return what a function becomes with another source."""
    found: dict[str, FunctionType] = {}
    name = function.__name__
    exec(compile(source, f"<fault in {name}>", "exec"), function.__globals__, found)
    return found[name]
