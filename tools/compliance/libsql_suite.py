"""Clients of libSQL that others wrote, which know nothing of this project: on three nodes, and on SQLite files.

The programs on JavaScript's clients are in ``tests/libsql``, those on Python's in ``libsql_run``; of the packages,
sqlalchemy-libsql has tests of its own in its source distribution.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from tools.cluster import ROOT, DemoError, clean_environment
from tools.compliance.nodes import three_nodes
from tools.compliance.outcomes import FAILED, PASSED, SKIPPED, Outcomes, read_record

FOLDER = ROOT / "tests" / "libsql"
NPM = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
JAVASCRIPT = ("client.mjs", "orm.mjs", "kysely.mjs")
PACKAGES = {"libsql": "libsql", "sqlalchemy_libsql": "sqlalchemy-libsql", "libsql_client": "django-libsql"}
PROGRAM_S, LIMIT_S = 120, 10 * 60


def missing() -> str | None:
    """Return what is to be installed, or None."""
    away = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if away:
        return f"{', '.join(away)} not installed; pip install 'bedrockish[programs]'"
    return None if shutil.which("npm") and shutil.which("node") else "no node and npm here, which run JavaScript"


def release() -> str:
    """Return that the locks say which releases they are."""
    return "as locked"


def run_ours(directory: Path) -> Outcomes:
    """Run the clients, each at one of three nodes.

    Raises:
        DemoError: they could not be run to their end.
    """
    with three_nodes(directory / "cluster", http=True) as cluster:
        first, second = (f"127.0.0.1:{node.http_port}" for node in cluster.nodes[:2])
        return _run(directory, {"http": f"http://{first}", "ws": f"ws://{second}"}, first)


def run_plain(directory: Path) -> Outcomes:
    """Run the clients on SQLite files.

    Raises:
        DemoError: they could not be run to their end.
    """
    return _run(directory, {"file": ""}, None)


def _run(directory: Path, urls: Mapping[str, str], server: str | None) -> Outcomes:
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        return _run_at(Path(temporary), urls, server)


def _run_at(directory: Path, urls: Mapping[str, str], server: str | None) -> Outcomes:
    programs = install(FOLDER, directory / "javascript")
    prisma = generate(install(FOLDER / "prisma", directory / "prisma"))
    found: Outcomes = {}
    for place, names in ((programs, JAVASCRIPT), (prisma, ("prisma.mjs",))):
        for name in names:
            for transport, url in urls.items():
                found[f"{name}[{transport}]"] = javascript(place, name, url or f"file:{name}.sqlite")
    return found | _python(directory, urls) | own_tests(directory, server)


# -- JavaScript ----------------------------------------------------------------------------------------------------


def install(source: Path, place: Path) -> Path:
    """Copy programs to a place and install what they need, as locked; return the place.

    Raises:
        DemoError: it could not be had.
    """
    place.mkdir()
    for file in source.iterdir():
        if file.is_file():
            shutil.copy(file, place)
    done = subprocess.run(NPM, cwd=place, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise DemoError(f"the packages for {source.name} could not be had:\n{(done.stdout + done.stderr)[-2_000:]}")
    return place


def generate(place: Path) -> Path:
    """Let Prisma write its client for the schema in a place; return the place.

    Its command line fetches an engine for migrations first, from a server of its own: that is not needed for this, and
    is given as a program that does nothing.

    Raises:
        DemoError: it could not be done.
    """
    settings = {"PRISMA_SCHEMA_ENGINE_BINARY": shutil.which("true") or "true", "CHECKPOINT_DISABLE": "1"}
    command = [str(place / "node_modules" / ".bin" / "prisma"), "generate", "--schema", "schema.prisma"]
    done = subprocess.run(
        command,
        cwd=place,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"Prisma's client could not be generated:\n{(done.stdout + done.stderr)[-2_000:]}")
    return place


def javascript(place: Path, program: str, url: str) -> tuple[str, str]:
    """Run a program with the URL of a database; return its outcome and its output."""
    done = subprocess.run(
        ["node", program, url], cwd=place, capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    if (done.returncode, done.stdout) == (0, "done\n"):
        return PASSED, ""
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "Error" in line]
    return FAILED, said[0] if said else f"ended with {done.returncode}"


# -- Python --------------------------------------------------------------------------------------------------------


def _python(directory: Path, urls: Mapping[str, str]) -> Outcomes:
    record = directory / "python.json"
    command = [sys.executable, "-P", "-m", "tools.compliance.libsql_run", str(record)]
    for transport, url in urls.items():
        command += [f"--{transport}", url or str(directory / "python.sqlite")]
    done = subprocess.run(
        command, cwd=directory, env=clean_environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if not record.exists():
        raise DemoError(f"the programs on Python's clients did not run:\n{done.stderr[-2_000:]}")
    return read_record(record)


def own_tests(directory: Path, server: str | None) -> Outcomes:
    """Run the tests that sqlalchemy-libsql ships: of a server and a copy of it, or, without one, of a file.

    Raises:
        DemoError: they could not be had, or not be run.
    """
    place = directory / "own"
    place.mkdir()
    asked = f"sqlalchemy-libsql=={version('sqlalchemy-libsql')}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(place),
        asked,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    archives = list(place.glob("*.tar.gz"))
    if done.returncode or not archives:
        raise DemoError(f"the source distribution of {asked} could not be had:\n{done.stderr.strip()}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(place, filter="data")
    (tests,) = place.glob("*/tests/test_basic.py")
    # A quote inside of the same quotes is read from Python 3.12 on only.
    tests.write_text(re.sub(r'\{os\.getenv\("(\w+)"\)\}', r"{os.getenv('\1')}", tests.read_text()))
    record = place / "junit.xml"
    settings = {"TURSO_DATABASE_URL": server, "TURSO_AUTH_TOKEN": ""} if server is not None else {}
    chosen = "remote or embedded" if server is not None else "file"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tests.parent)]
    done = subprocess.run(
        [*command, "-c", os.devnull, str(tests), "-k", chosen, f"--junitxml={record}"],
        cwd=place,
        env=clean_environment() | settings,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if not record.exists():
        raise DemoError(f"the tests of {asked} did not run:\n{done.stdout[-2_000:]}")
    return read_junit(record)


def read_junit(record: Path) -> Outcomes:
    """Return what pytest has written down."""
    found: Outcomes = {}
    for case in ElementTree.parse(record).getroot().iter("testcase"):
        outcome, why = PASSED, ""
        for kind, what in (("failure", FAILED), ("error", FAILED), ("skipped", SKIPPED)):
            element = case.find(kind)
            if element is not None:
                outcome, why = what, (element.get("message") or "").splitlines()[0][:300]
        found[f"sqlalchemy-libsql: {case.get('name')}"] = outcome, why
    return found
