"""Writes tools/requirements.lock: what pip resolves today for this project, pinned, in the groups that are installed.

Run it with the oldest Python that we support, so that no locked package needs a newer one. Locked packages keep their
versions; ``--upgrade`` resolves all of them again.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tools" / "requirements.lock"
HEAD = """\
# Written by `python -m tools.lock`; do not edit. Exact versions of everything that is installed, by group. A package
# that two groups need is listed in the first of them.
"""


def resolve(requirements: list[str]) -> dict[str, str]:
    """Return the version of each package that pip would install now, by the package's name."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "report.json")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--ignore-installed", "--dry-run"]
        subprocess.run([*pip, "--report", str(report), *requirements], check=True)
        found = json.loads(report.read_text())["install"]
    versions = {item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in found}
    versions.pop("pip", None)  # a package that calls pip requires it, but pip comes with Python
    return versions


def constrained(pins: list[str], requirements: list[str]) -> dict[str, str]:
    """Return the resolved requirements, with the pinned packages at their pinned versions."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(pins))
        constraints.flush()
        return resolve(["-c", constraints.name, *requirements])


def markers(requirements: list[str]) -> dict[str, str]:
    """Return the marker of each package that has one, by name: such a package has no wheel for other Pythons."""
    split = [line.partition(";") for line in requirements]
    return {re.split(r"[\[<>=~! ]", what)[0]: marker.strip() for what, _, marker in split if marker}


def locked() -> list[str]:
    return [line for line in LOCK.read_text().splitlines() if "==" in line]


def main() -> None:
    """Write the lock: resolve all groups together, so that they agree, then each group for its own packages."""
    parser = argparse.ArgumentParser(prog="python -m tools.lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="replace locked versions by the newest ones")
    kept = [] if parser.parse_args().upgrade else locked()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = declared["project"], declared["build-system"]["requires"]
    extras = project["optional-dependencies"]
    groups = {
        "runtime": [*project["dependencies"], *extras["http"], *build],
        "spark": [*extras["spark"], *extras["audit"]],
        "dev": [*extras["dev"], *extras["sqlalchemy"], *extras["tls"]],
        "programs": extras["programs"],
    }
    declared_lines = [line for lines in groups.values() for line in lines]
    everything, only = constrained(kept, declared_lines), markers(declared_lines)
    pins = [f"{name}=={version}" for name, version in everything.items()]
    lines, seen = [HEAD.rstrip()], set[str]()
    for group, requirements in groups.items():
        names = set(constrained(pins, requirements)) - seen
        seen |= names
        ends = {name: f"; {only[name]}" for name in only.keys() & names}
        lines += ["", f"# group: {group}", *(f"{n}=={everything[n]}{ends.get(n, '')}" for n in sorted(names))]
    assert seen == set(everything), f"in no group: {set(everything) - seen}"
    LOCK.write_text("\n".join(lines) + "\n")
    print(f"{LOCK.relative_to(ROOT)}: {len(everything)} packages")


if __name__ == "__main__":
    main()
