"""SQLite modules for vectors: those installed at this node, and those that the tables of a schema need."""

from collections.abc import Iterable

from bedrockish_journal.storage.vector_modules import PACKAGES, VECTORS, installed
from bedrockish_journal.storage.virtual_tables import is_virtual, parse_virtual

__all__ = ["PACKAGES", "installed", "needed"]


def needed(statements: Iterable[str]) -> list[str]:
    """Return the modules for vectors that are used by the virtual tables in a schema's statements."""
    made = (parse_virtual("", sql).module for sql in map(str.lstrip, statements) if is_virtual(sql))
    return sorted({module for module in made if module in VECTORS})
