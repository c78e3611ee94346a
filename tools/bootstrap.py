"""Builds the private environment and runs one of the project's programs in it.

Standard library only. Run by ``tools/launch.sh`` with any Python from 3.11 on. Two users may run it at once, and it may
be stopped midway: the stamp that says "complete" is written last, and a broken environment is rebuilt.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "journal"))

from bedrockish_journal.spark.session import why_no_java  # noqa: E402  (the package is found only from here on)

LOCK = ROOT / "tools" / "requirements.lock"
STAMP = "bedrockish-complete"
PROGRAMS = {
    "test": "tools.check",
    "demo": "tools.demonstration.cluster",
    "bench": "tools.bench",
    "simulate": "tools.simulate",
}
NO_INDEX = re.compile(
    r"NewConnectionError|NameResolutionError|Max retries|Network is unreachable|ConnectTimeout|ReadTimeout|ProxyError"
    r"|Temporary failure in name resolution|Connection refused|from versions: none"
)


def say(text: str) -> None:
    """Print a text to standard error, because standard output belongs to the program that follows."""
    print(text, file=sys.stderr, flush=True)


def give_up(*lines: str) -> NoReturn:
    """Print the reason and the remedy, and exit with status 2."""
    for line in lines:
        say(line)
    raise SystemExit(2)


def read_lock() -> dict[str, list[str]]:
    """Return the pinned requirements of each group; a group begins with a line ``# group: NAME``."""
    groups: dict[str, list[str]] = {}
    name = ""
    for line in LOCK.read_text().splitlines():
        if line.startswith("# group: "):
            name = line.removeprefix("# group: ").strip()
        elif line.strip() and not line.startswith("#"):
            groups.setdefault(name, []).append(line.strip())
    return groups


def wanted_groups(program: str, arguments: list[str]) -> list[str]:
    """Return the groups of packages that a program needs; without Java, print what the program will leave out."""
    helping = "--help" in arguments or "-h" in arguments
    if program == "test":
        if why := why_no_java():
            say(f"NOTE: the Spark tests will be SKIPPED: {why}")
        return ["runtime", "spark", "dev", "programs"]
    if program in ("bench", "simulate") or "--no-audit" in arguments or helping:
        return ["runtime"]
    if why := why_no_java():
        say(f"NOTE: the demo leaves out its audit in Spark: {why}")
        return ["runtime"]
    return ["runtime", "spark"]


def works(python: Path) -> bool:
    """Return whether an environment's interpreter starts and has pip."""
    try:
        done = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def make_environment(home: Path) -> Path:
    """Return the interpreter of a working environment; build the environment first if it is missing or broken."""
    python = home / "bin" / "python"
    if works(python):
        return python
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        give_up(
            f"{sys.executable} (Python {version}) has no venv module, which makes the private environment",
            f"install it (Debian and Ubuntu: apt install python3-venv, or python{version}-venv) and run this again",
        )
    if home.exists() and any(home.iterdir()) and not (home / "pyvenv.cfg").exists():
        give_up(f"{home} is not an environment and is left as it is; choose another place with BEDROCKISH_VENV")
    say(f"making the private environment {home} (Python {sys.version.split()[0]})")
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", home], capture_output=True, text=True, check=False)
    if done.returncode != 0 or not works(python):
        give_up(f"the environment {home} could not be made:", (done.stdout + done.stderr).strip())
    return python


def pip(python: Path, *arguments: str) -> None:
    """Run pip quietly; on failure print a known reason in one line, or else the end of pip's output."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode == 0:
        return
    said = (done.stdout + done.stderr).strip()
    if NO_INDEX.search(said):
        say("pip could not reach the package index: check the network, or point PIP_INDEX_URL to a mirror")
    give_up(*said.splitlines()[-8:], "the installation is incomplete; running this again continues it")


def build(home: Path, groups: list[str]) -> Path:
    """Make sure that the groups are installed as the lock says, and return the environment's interpreter."""
    digest = hashlib.sha256(LOCK.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    python, stamp = home / "bin" / "python", home / STAMP
    # The place of the checkout is in the stamp, because the editable installation points to it.
    head = f"{digest} {ROOT}"
    said = stamp.read_text().splitlines() if stamp.exists() and python.exists() else []
    have = set(said[1:]) if said[:1] == [head] else set()
    if have >= set(groups):
        return python
    groups = sorted(have | set(groups), key=["runtime", "spark", "dev", "programs"].index)
    started = time.monotonic()
    python = make_environment(home)
    stamp.unlink(missing_ok=True)
    pinned = [line for group in groups for line in read_lock()[group]]
    size = "; Spark is some 450 MB" if "spark" in groups and "spark" not in have else ""
    say(f"installing {len(pinned)} pinned packages (only the first time{size})")
    pip(python, "--no-deps", *pinned)
    pip(python, "--no-deps", "--no-build-isolation", "--editable", ".")
    stamp.write_text("\n".join([head, *groups]) + "\n")
    say(f"environment ready in {time.monotonic() - started:.0f} s: {home}")
    return python


def main() -> NoReturn:
    """Build the environment if necessary, and then replace this process by the program."""
    program, arguments = sys.argv[1], sys.argv[2:]
    if program == "test" and ("--help" in arguments or "-h" in arguments):  # the help needs no packages
        become(sys.executable, PROGRAMS[program], ["--help"], os.environ.get("PATH", ""))
    home = Path(os.environ.get("BEDROCKISH_VENV") or ROOT / ".venv").absolute()
    groups = wanted_groups(program, arguments)
    with LOCK.open("rb") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # two runs at once must not install over each other
        python = build(home, groups)
    become(str(python), PROGRAMS[program], arguments, f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")


def become(python: str, module: str, arguments: list[str], path: str) -> NoReturn:
    """Replace this process by a program of the project, without the environment variables of the bootstrap."""
    roots = os.pathsep.join(str(ROOT / name) for name in ("", "journal", "net"))
    environment = dict(os.environ, PYTHONPATH=roots, PATH=path)
    for variable in ("PYTHONHOME", "BEDROCKISH_PYTHON", "BEDROCKISH_VENV"):
        environment.pop(variable, None)
    sys.stdout.flush()
    os.execve(python, [python, "-P", "-m", module, *arguments], environment)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        give_up("", "stopped; running this again continues")
