"""Prints the oldest version of each package that pyproject.toml allows, as requirements for pip.

    python -m tools.bounds > oldest.txt

An environment with these versions shows whether the bounds are right: run the tests in it.
"""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
EXTRAS = ("sqlalchemy", "django", "vectors", "tls", "http")  # the extras that add packages to programs and nodes


def oldest() -> dict[str, str]:
    """Return the lower bound of each package that nodes and programs use.

    Raises:
        ValueError: a package has no lower bound, or more than that.
    """
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    found: dict[str, str] = {}
    for line in (*project["dependencies"], *(line for extra in EXTRAS for line in optional[extra])):
        bound = re.fullmatch(r"([\w.-]+)>=([\d.]+)", line)
        if bound is None:
            raise ValueError(f"pyproject.toml: {line!r} should be a name and its lower bound, such as click>=8.2")
        found[bound[1]] = bound[2]
    return found


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in oldest().items()))
