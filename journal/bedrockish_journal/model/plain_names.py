"""Names of tables and columns, as SQLite compares them, and as lakes and topics take them."""

import re
from string import ascii_lowercase, ascii_uppercase

_PLAIN = re.compile(r"(?!x_)[A-Za-z0-9][A-Za-z0-9_]*")

_FOLDED = str.maketrans(ascii_uppercase, ascii_lowercase)


def folded(name: str) -> str:
    """Return a name as SQLite compares it: letters of ASCII in either case are the same, and no others."""
    return name.translate(_FOLDED)


def plain_name(name: str) -> str:
    """Return a name of ASCII letters, digits and _ that does not begin with _: the same, if it is such a one.

    No two names become the same: what is written otherwise begins with ``x_``, and so is what began with that before.
    """
    if _PLAIN.fullmatch(name):
        return name
    return "x_" + "".join(one if one.isalnum() and one.isascii() else f"_{ord(one):x}_" for one in name)
