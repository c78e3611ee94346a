"""The shipped packages: the wheel and the sdist are built, and the wheel is used where a user's own files have common
names.

The environment of the test has the packages that the wheel needs, nothing of the checkout, and a folder of a user who
calls modules of the own program ``net`` and ``journal``.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cluster import free_ports

ROOT = Path(__file__).resolve().parent.parent
OURS = {"bedrockish", "bedrockish_journal", "bedrockish_net", "pyspark_bedrockish"}
THEIRS = 'raise ImportError("this module belongs to the user\'s program")\n'
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""
USE = """
import sys
import bedrockish
with bedrockish.connect(sys.argv[1]) as db:
    db.execute("CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT)")
    db.execute("INSERT INTO note VALUES (1, 'kept')")
    print(db.execute("SELECT text FROM note").one()[0], bedrockish.__file__)
"""
READ_AND_AUDIT = """
import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from bedrockish.cli.main import main
absent, known = sys.argv[1].split(), packages_distributions()
class Present:
    def find_spec(self, name, path=None, target=None):
        if any(one.lower().replace("_", "-") in absent for one in known.get(name.partition(".")[0], ())):
            return None
        return PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Present()
from bedrockish_journal.audit import report
from bedrockish_journal.spark import register
from bedrockish_journal.spark.session import quiet_session
spark = quiet_session(brief=True)
register(spark)
print("commits", spark.read.format("bedrockish").option("table", "commits").load(sys.argv[2]).count(), flush=True)
report.LAWS = report.LAWS[:3]  # each question is put to Spark in tests/spark
sys.argv[1:] = ["audit", "--engine", "spark", sys.argv[2]]
main()
"""


def build(hook: str, place: Path) -> Path:
    """Run a hook of the build backend, as any installer does, on a copy of the tracked files."""
    source = place / "source"
    if not source.exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-P", "-c", BUILD, hook, str(place)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel, the packages that it needs, and nothing of the checkout."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    place = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for found in Path(sysconfig.get_path("purelib")).iterdir():
        if "bedrockish" not in found.name and found.suffix != ".pth":
            (place / found.name).symlink_to(found)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q", "--no-deps", wheel],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return home / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a user's program, with modules that could be taken for ours."""
    for name in ("net", "journal", "tools"):
        (tmp_path / f"{name}.py").write_text(THEIRS)
    return tmp_path


def run(python: Path, folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": str(python)}
    done = subprocess.run(
        [python, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for(port: int, node: subprocess.Popen[bytes]) -> None:
    """Return once the node's HTTP port, which is opened last, takes connections."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and node.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)


@pytest.fixture
def served(python: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Run one node from the wheel, and yield its URL and that of its HTTP."""
    port, http = free_ports(2)
    program = [str(python), "-m", "bedrockish.cli.main", "serve", "--node", "A", "--database", "A.sqlite"]
    program += ["--listen", f"127.0.0.1:{port}", "--set", f"http=127.0.0.1:{http}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (folder / "A.log").open("wb") as log:
        node = subprocess.Popen(program, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_for(http, node)
        yield f"bedrockish://127.0.0.1:{port}", f"http://127.0.0.1:{http}/"
    finally:
        node.terminate()
        assert node.wait(60) == 0, (folder / "A.log").read_text()


def test_wheel_has_no_top_level_name_that_users_may_have(wheel: Path) -> None:
    """The wheel's top-level packages begin with our name, apart from the package that Spark looks for."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == OURS
    assert "bedrockish/py.typed" in names


def test_sdist_has_sources_licence_and_readme(tmp_path: Path) -> None:
    """The sources of all packages, the licence and the README are in it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with tarfile.open(build("build_sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert all(name.startswith(f"bedrockish-{version}") for name in archive.getnames())
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "bedrockish/core/node.py",
        "journal/bedrockish_journal/model/entry.py",
        "journal/pyspark_bedrockish/__init__.py",
        "net/bedrockish_net/frame.py",
    } <= names


@pytest.mark.cluster
def test_the_wheel_serves_beside_a_users_modules(python: Path, folder: Path, served: tuple[str, str]) -> None:
    """A node, a client and HTTP run from the wheel alone, next to a ``net.py`` and a ``journal.py``."""
    url, page = served
    said, where = run(python, folder, "-c", USE, url).split()
    assert said == "kept"
    assert str(python.parent.parent) in where
    with urllib.request.urlopen(page, timeout=30) as answer:
        assert b"/db/execute" in answer.read()


@pytest.mark.spark
@pytest.mark.cluster
def test_spark_reads_and_audits_with_the_wheel_and_its_extra(
    python: Path, folder: Path, served: tuple[str, str]
) -> None:
    """Spark's workers find the data source in the wheel, without any package of a development environment."""
    run(python, folder, "-c", USE, served[0])
    others = re.split(r"^# group: dev$", (ROOT / "tools" / "requirements.lock").read_text(), flags=re.MULTILINE)[1]
    absent = re.findall(r"^([\w.-]+)==", others, flags=re.MULTILINE)
    assert "pytest" in absent
    said = run(python, folder, "-c", READ_AND_AUDIT, " ".join(absent), str(folder / "A.sqlite"))
    assert re.search(r"^commits [1-9]", said, flags=re.MULTILINE), said
    assert "1 nodes (A)" in said
