"""The lengths of the texts that FTS5 searches for, as far as a statement's program and parameters tell them.

FTS5 compares each term of a search with all before it, and nothing interrupts that: 16,000 terms take half a second,
200,000 some minutes. A text may have half as many terms as bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bedrockish.access_sets.opcodes import Op

LOOP, WORKER = 4 << 10, 64 << 10  # bytes of a search
_MATCH = "M"  # in the plan of an FTS5 table; each letter or sign stands for an argument
_SOURCES = {
    "Variable": "p2",
    "String8": "p2",
    "Null": "p2",
    "Integer": "p2",
    "Concat": "p3",
    "Copy": "p2",
    "SCopy": "p2",
}
_FUNCTIONS = frozenset({"Function", "PureFunc"})
_SHORTENING = {"lower(1)": 1, "upper(1)": 1, "trim(1)": 1, "trim(2)": 2, "substr(2)": 2, "substr(3)": 3}
_REPLACE = "replace(3)"


@dataclass(frozen=True, slots=True)
class Searches:
    """The texts that a statement searches for.

    Attributes:
        params: the places of the parameters that they are made of, from 0.
        constants: bytes of the constants that they are made of.
        replaces: their lengths may be multiplied with each other.
        is_known: they are made of nothing else.
    """

    params: tuple[int, ...] = ()
    constants: int = 0
    replaces: bool = False
    is_known: bool = True

    def fits(self, sizes: Mapping[int, int], most: int) -> bool:
        """Return whether the texts have at most so many bytes, for parameters of these sizes."""
        size = self.constants + sum(sizes.get(place, 0) for place in self.params)
        return self.is_known and (size * size if self.replaces else size) <= most


def searches(programs: Sequence[Sequence[Op]]) -> Searches | None:
    """Return the texts that a statement searches for; None if it searches for none."""
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
    """Return the instructions that give registers a text; None for one that is not followed."""
    found: dict[int, list[Op | None]] = {}
    for op in program:
        if op.name in _FUNCTIONS:
            found.setdefault(op.p3, []).append(op)
        elif op.name in _SOURCES:
            found.setdefault(getattr(op, _SOURCES[op.name]), []).append(op)
        elif op.name in ("Column", "VColumn", "Param"):
            found.setdefault(op.p2 if op.name == "Param" else op.p3, []).append(None)
    return found
