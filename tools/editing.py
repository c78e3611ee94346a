"""Changes the source of functions for a time, to test that a check detects the fault.

The replaced text must occur exactly once, so that an edit that no longer fits the code is an error.
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
    """One edit: in the function ``name`` of a class or module, ``old`` is replaced by ``new``."""

    owner: type | ModuleType
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """A deliberate fault: edits of the code that remove a rule or make a mistake."""

    rule: str  # the removed rule or the mistake, in words
    edits: tuple[Edit, ...]
    scope: str  # the scope of the model check that detects the fault quickly; empty: worlds of the simulator detect it
    # The options of worlds in which the rule matters. The other options are drawn, or with ``calm`` the defaults.
    options: tuple[tuple[str, object], ...] = ()


def fault(rule: str, /, *edits: tuple[Any, str, str, str], **options: object) -> Fault:
    """Return a fault with edits, each given as (class or module, function, old text, new text)."""
    return caught_in("", rule, *edits, **options)


def caught_in(scope: str, rule: str, /, *edits: tuple[Any, str, str, str], **options: object) -> Fault:
    """Return a fault that a scope of the model check detects quickly, with edits as for ``fault``."""
    return Fault(rule, tuple(Edit(*edit) for edit in edits), scope, tuple(options.items()))


@contextmanager
def in_force(taken: Fault) -> Iterator[None]:
    """Apply a fault to the code inside the block. Nodes still assert their invariants."""
    before: dict[FunctionType, CodeType] = {}
    sources: dict[FunctionType, str] = {}
    try:
        for edit in taken.edits:
            function = edit.owner.__dict__[edit.name]
            source = sources.get(function) or textwrap.dedent(inspect.getsource(function))
            before.setdefault(function, function.__code__)
            assert source.count(edit.old) == 1, f"{edit.old!r} is {source.count(edit.old)} times in {edit.name}"
            sources[function] = source.replace(edit.old, edit.new)
            # The code is replaced in place, because other modules have imported the function by its name.
            function.__code__ = _made(function, sources[function]).__code__
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


def _made(function: FunctionType, source: str) -> FunctionType:
    found: dict[str, FunctionType] = {}
    name = function.__name__
    exec(compile(source, f"<fault in {name}>", "exec"), function.__globals__, found)
    return found[name]
