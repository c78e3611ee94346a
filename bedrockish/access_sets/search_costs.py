"""The lengths of the texts for which FTS5 searches, derived from a statement's program and parameters.

FTS5 compares each term of a search with all terms before it, without an interrupt: 16,000 terms take half a second,
200,000 terms some minutes. A text may have half as many terms as bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bedrockish.access_sets.opcodes import Op

LOOP, WORKER = 4 << 10, 64 << 10  # limits for the bytes of the texts of a search, in the loop and in a worker
_MATCH = "M"  # stands for the text of a MATCH in FTS5's plan, which has a letter or sign for each argument
_SOURCES = dict.fromkeys(("Variable", "String8", "Null", "Integer", "Copy", "SCopy"), "p2") | {"Concat": "p3"}
_FUNCTIONS = frozenset({"Function", "PureFunc"})
_SHORTENING = {"lower(1)": 1, "upper(1)": 1, "trim(1)": 1, "trim(2)": 2, "substr(2)": 2, "substr(3)": 3}
_REPLACE = "replace(3)"


@dataclass(frozen=True, slots=True)
class Searches:
    """The texts for which a statement searches with FTS5."""

    params: tuple[int, ...] = ()  # the positions, from 0, of the parameters from which the texts are built
    constants: int = 0  # bytes of the constants from which the texts are built
    replaces: bool = False  # whether replace() may multiply the lengths
    is_known: bool = True  # whether the texts are built from these parameters and constants only

    def fits(self, sizes: Mapping[int, int], most: int) -> bool:
        """Return whether the texts have at most ``most`` bytes, for parameters of these sizes."""
        size = self.constants + sum(sizes.get(place, 0) for place in self.params)
        return self.is_known and (size * size if self.replaces else size) <= most


def searches(programs: Sequence[Sequence[Op]]) -> Searches | None:
    """Return the texts for which a statement searches with FTS5; None if it does not search."""
    params, constants, replaces, is_known, found = set[int](), 0, False, True, False
    for program in programs:
        filters = [op for op in program if op.name == "VFilter" and _MATCH in (op.p4 or "")]
        if not filters:
            continue
        found, sources = True, _sources(program)
        left = [op.p3 + 2 + place for op in filters for place in range(sum(not one.isdigit() for one in op.p4 or ""))]
        seen = set[int]()
        while left:
            register = left.pop()
            if register in seen:
                continue
            seen.add(register)
            for op in sources.get(register, (None,)):
                if op is None:
                    is_known = False
                elif op.name == "Variable":
                    params.add(op.p1 - 1)
                elif op.name == "String8":
                    constants += len(op.p4 or "")
                elif op.name in ("Copy", "SCopy"):
                    left.append(op.p1)
                elif op.name == "Concat":
                    left += (op.p1, op.p2)
                elif op.name in _FUNCTIONS:
                    count = 3 if op.p4 == _REPLACE else _SHORTENING.get(op.p4 or "", 0)
                    is_known, replaces = is_known and count > 0, replaces or op.p4 == _REPLACE
                    left += range(op.p2, op.p2 + count)
    return Searches(tuple(sorted(params)), constants, replaces, is_known) if found else None


def _sources(program: Sequence[Op]) -> dict[int, list[Op | None]]:
    """Return for each register the instructions that set its text; None if a row or a trigger's parameter sets it."""
    found: dict[int, list[Op | None]] = {}
    for op in program:
        if op.name in _FUNCTIONS:
            found.setdefault(op.p3, []).append(op)
        elif op.name in _SOURCES:
            found.setdefault(getattr(op, _SOURCES[op.name]), []).append(op)
        elif op.name in ("Column", "VColumn", "Param"):
            found.setdefault(op.p2 if op.name == "Param" else op.p3, []).append(None)
    return found
