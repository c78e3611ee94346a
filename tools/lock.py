"""Writes tools/requirements.lock: what pip resolves today for this project, pinned, in the groups that are installed.

Run it with a Python of the oldest version that we support, so that nothing newer than that slips in.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tools" / "requirements.lock"
HEAD = """\
# Written by `python -m tools.lock`; do not edit. Exact versions of everything that is installed, by group.
# A package that two groups need is in the first.
"""


def resolve(requirements: list[str]) -> dict[str, str]:
    """Ask pip which versions it would install now, by name."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "report.json")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--ignore-installed", "--dry-run"]
        subprocess.run([*pip, "--report", str(report), *requirements], check=True)
        found = json.loads(report.read_text())["install"]
    return {item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in found}


def main() -> None:
    """Resolve everything together, so that the groups agree, then each group for its share."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = declared["project"], declared["build-system"]["requires"]
    extras = project["optional-dependencies"]
    groups = {
        "runtime": [*project["dependencies"], *extras["http"], *build],
        "spark": [*extras["spark"], *extras["plots"]],
        "dev": [*extras["dev"], *extras["sqlalchemy"]],
        "programs": extras["programs"],
    }
    everything = resolve([line for lines in groups.values() for line in lines])
    pins = [f"{name}=={version}" for name, version in everything.items()]
    lines, seen = [HEAD.rstrip()], set[str]()
    for group, requirements in groups.items():
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("\n".join(pins))
            constraints.flush()
            names = set(resolve(["-c", constraints.name, *requirements])) - seen
        seen |= names
        lines += ["", f"# group: {group}", *(f"{name}=={everything[name]}" for name in sorted(names))]
    assert seen == set(everything), f"in no group: {set(everything) - seen}"
    LOCK.write_text("\n".join(lines) + "\n")
    print(f"{LOCK.relative_to(ROOT)}: {len(everything)} packages")


if __name__ == "__main__":
    main()
