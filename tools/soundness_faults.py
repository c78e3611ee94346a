"""Deliberate faults of the read-set analysis: each is one that could be made, and each must be found by the search.

A fault is a function of no arguments that returns what to put in the place of what.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from bedrockish.engine import keys, readset, registers, seeks, writeset

Patch = tuple[Any, str, Any]
Fault = Callable[[], list[Patch]]


def no_sub_programs() -> list[Patch]:
    """Reads of triggers are forgotten."""
    explain = readset._explain
    return [(readset, "_explain", lambda *args: explain(*args)[:1])]


def dynamic_is_nothing() -> list[Patch]:
    """A lookup by a value from another row reads nothing."""

    def whole(_: Any, found: Any, reason: str, into: list[Any]) -> None:
        if "another row" not in reason:
            into.append(seeks.Access(found.object))

    return [(seeks._Reader, "_whole", whole)]


def opaque_is_nothing() -> list[Patch]:
    """An index on an expression reads nothing."""

    def whole(_: Any, found: Any, reason: str, into: list[Any]) -> None:
        if "expression" not in reason:
            into.append(seeks.Access(found.object))

    return [(seeks._Reader, "_whole", whole)]


def every_stop_counts() -> list[Patch]:
    """Any comparison after a seek is taken as the end of its loop, also where rows come by it another way."""
    return [(seeks._Reader, "_guards", lambda *_: True)]


def count_is_nothing() -> list[Patch]:
    """count(*) reads nothing."""
    return [(seeks, "WHOLE", frozenset())]


def no_prefix_end() -> list[Patch]:
    """The end of a range leaves out the entries that begin with it."""
    end = readset._end
    return [(readset, "_end", lambda name, fields, _, pick: end(name, fields, False, pick))]


def no_affinity() -> list[Patch]:
    """Values are compared as the client gave them."""
    return [(readset, "apply_affinity", lambda value, _: value)]


def no_collation() -> list[Patch]:
    """Text is compared byte by byte whatever the collation."""
    patches: list[Patch] = []
    for module in (readset, writeset):
        encoder = module.encoder
        plain = lambda spec, encoder=encoder: encoder(keys.Spec("BINARY", spec.descending))  # noqa: E731
        patches.append((module, "encoder", plain))
    return patches


def no_descending() -> list[Patch]:
    """A descending column is encoded as an ascending one."""
    patches: list[Patch] = []
    for module in (readset, writeset):
        encoder = module.encoder
        plain = lambda spec, encoder=encoder: encoder(keys.Spec(spec.collation, False))  # noqa: E731
        patches.append((module, "encoder", plain))
    return patches


def one_value_a_register() -> list[Patch]:
    """Of several values that a register may hold only one counts."""
    values = registers.Registers.values

    def one(self: Any, register: int) -> Any:
        atoms = values(self, register)
        return frozenset(sorted(atoms, key=repr)[:1]) if atoms else atoms

    return [(registers.Registers, "values", one)]


def no_old_keys() -> list[Patch]:
    """A changed row writes the keys that it has now, not those that it had."""
    points = writeset._TableKeys.points

    def new_only(self: Any, old_id: Any, new_id: Any, old: Any, new: Any) -> Any:
        return points(self, old_id, new_id, None if new is not None else old, new)

    return [(writeset._TableKeys, "points", new_only)]


def no_index_keys() -> list[Patch]:
    """A changed row writes its place in the table only."""
    return [(writeset._TableKeys, "_add_index", lambda *_: None)]


def no_unique_points() -> list[Patch]:
    """Two rows with the same UNIQUE value do not meet."""
    return [(writeset, "_no_null", lambda *_: False)]


def no_parents() -> list[Patch]:
    """A child does not read its parent."""
    return [(writeset._TableKeys, "reads", lambda *_: ([], []))]


def all_probes_enforce() -> list[Patch]:
    """Every look into a unique index is taken for one that only enforces it, also under OR IGNORE."""
    return [("bedrockish.engine.constraints", "_ends_in_unique_halt", lambda *_: True)]


def failures_read_less() -> list[Patch]:
    """A statement that failed does not count what it looked up to enforce constraints."""
    return [(readset.ReadPlan, "bind_failed", readset.ReadPlan.bind)]


FAULTS: dict[str, Fault] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        no_sub_programs, dynamic_is_nothing, opaque_is_nothing, every_stop_counts, count_is_nothing, no_prefix_end,
        no_affinity, no_collation, no_descending, one_value_a_register, no_old_keys, no_index_keys, no_unique_points,
        no_parents, all_probes_enforce, failures_read_less,
    )
}  # fmt: skip


@contextlib.contextmanager
def broken(name: str | None) -> Iterator[None]:
    """Run something with one fault in place, or with none."""
    with contextlib.ExitStack() as stack:
        for target, attribute, replacement in FAULTS[name]() if name else []:
            if isinstance(target, str):
                stack.enter_context(mock.patch(f"{target}.{attribute}", replacement))
            else:
                stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield
