"""Names of tables and columns as others take them that are not SQLite: lakes, topics."""

import re

_PLAIN = re.compile(r"(?!x_)[A-Za-z0-9][A-Za-z0-9_]*")


def plain_name(name: str) -> str:
    """Return a name of ASCII letters, digits and _ that does not begin with _: the same, if it is such a one.

    No two names become the same: what is written otherwise begins with ``x_``, and so is what began with that before.
    """
    if _PLAIN.fullmatch(name):
        return name
    return "x_" + "".join(one if one.isalnum() and one.isascii() else f"_{ord(one):x}_" for one in name)
