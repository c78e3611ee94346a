"""The values that one column of a key can have, as far as they come from constants and parameters."""

from collections.abc import Callable, Sequence
from typing import Any

from bedrockish.access_sets.cursor_ranges import FieldValues
from bedrockish.access_sets.key_encoding import apply_affinity

Params = Sequence[Any]

UNENCODABLE = (TypeError, OverflowError, IndexError)
"""Errors of a bad parameter; they are ignored here, because SQLite then refuses it with a better message."""

# The type that each affinity leaves unchanged; nearly all encoded values have the type of their column's affinity.
_UNTOUCHED: dict[str, type] = {"B": str, "C": int, "D": int, "E": float}


def closure(value: Any, affinities: Sequence[str]) -> list[Any]:
    """Return a value and every form into which these affinities, applied in any order, can convert it."""
    kind = type(value)
    if kind is bool:
        value, kind = int(value), int
    for affinity in affinities:
        if value is not None and _UNTOUCHED.get(affinity) is not kind:
            break
    else:
        return [value]
    found = [value]
    for form in found:
        for affinity in affinities:
            other = apply_affinity(form, affinity)
            if other is not form and not any(type(other) is type(one) and other == one for one in found):
                found.append(other)
    return found


def untouched_types(affinities: Sequence[str]) -> frozenset[type]:
    """Return the types whose values all these affinities leave unchanged."""
    return frozenset(
        kind for kind in (int, str, float) if all(_UNTOUCHED.get(affinity) is kind for affinity in affinities)
    )


def static_maker(field: FieldValues) -> Callable[[Params], list[Any]]:
    """Return the function from parameters to those values of a key column that do not depend on rows.

    The function raises an IndexError if there are too few parameters.
    """
    constants: list[Any] = []
    parameters: list[tuple[int, list[str]]] = []
    for atom in sorted(field.atoms, key=repr):
        if atom.kind == "const":
            constants += closure(atom.payload[1], sorted(atom.affinities))
        elif atom.kind == "param":
            parameters.append((atom.payload - 1, sorted(atom.affinities)))
    if len(parameters) == 1 and not constants:
        ((number, affinities),) = parameters
        return lambda params: closure(params[number], affinities)

    def values(params: Params) -> list[Any]:
        found = constants.copy()
        for number, affinities in parameters:
            found += closure(params[number], affinities)
        return found

    return values
