"""The house rules that a machine can check: who may import whom, how long things are, what a text must not contain."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES_MAX, FUNCTION_LINES_MAX = 400, 70

# Who may import whom: the row of the longest matching path holds. A name allows itself and all below it; ``!name``
# takes that away again. The standard library is allowed except where a row says otherwise.
IO = "!asyncio !logging !os !pathlib !random !secrets !select !socket !sqlite3 !subprocess !tempfile !threading !time"
JOURNAL_PURE = (
    "journal !journal.commands !journal.differences !journal.pruning !journal.schema !journal.steps !journal.store "
    "!journal.replay !journal.spark !journal.verify"
)
MAY_IMPORT = {
    "net": f"net cbor2 {IO}",
    "net/handshake.py": "net trio",
    "net/stream.py": "net trio",
    "net/mesh.py": "net trio cbor2",
    "net/tls.py": "net trio",
    "journal": f"{JOURNAL_PURE} cbor2 sortedcontainers {IO}",
    "journal/store.py": "journal !journal.spark apsw cbor2",
    "journal/schema.py": "journal !journal.spark apsw",
    "journal/steps.py": "journal !journal.spark apsw cbor2",
    "journal/differences.py": "journal !journal.spark apsw",
    "journal/commands.py": "journal !journal.spark apsw",
    "journal/pruning.py": "journal !journal.spark apsw cbor2",
    "journal/tables.py": "journal !journal.spark apsw cbor2",
    "journal/replay.py": "journal !journal.spark apsw cbor2",
    "journal/verify.py": "journal !journal.spark apsw cbor2",
    "journal/spark/plots.py": "journal.spark pyspark matplotlib",
    # The one file that reads running nodes instead of files, as any client does.
    "journal/spark/live.py": "journal bedrockish.addresses bedrockish.client bedrockish.errors bedrockish.requests",
    "journal/spark": "journal !journal.store !journal.replay pyspark pyarrow cbor2 !apsw !trio",
    "bedrockish": "bedrockish journal !journal.spark net cbor2 trio",
    "bedrockish/core": (
        "bedrockish.core bedrockish.errors bedrockish.requests bedrockish.clock cbor2 sortedcontainers "
        f"{JOURNAL_PURE} {IO}"
    ),
    # A forwarded command travels as the client's own call, so this file of the core reads the clients' wire (pure).
    "bedrockish/core/forwarding.py": (
        f"bedrockish.core bedrockish.errors bedrockish.requests bedrockish.wire {JOURNAL_PURE} {IO}"
    ),
    "bedrockish/wire.py": (
        "bedrockish.addresses bedrockish.errors bedrockish.params bedrockish.plain bedrockish.requests "
        f"{JOURNAL_PURE} cbor2 {IO}"
    ),
    "bedrockish/plugins.py": "bedrockish apsw",
    "bedrockish/engine": (
        "bedrockish.engine bedrockish.errors bedrockish.requests bedrockish.clock bedrockish.control "
        "bedrockish.core.records journal !journal.spark apsw cbor2 sortedcontainers !socket !asyncio !random"
    ),
    "bedrockish/client": (
        "bedrockish !bedrockish.core !bedrockish.engine !bedrockish.runtime !bedrockish.server net journal cbor2 trio"
    ),
    "bedrockish/http": (
        "bedrockish !bedrockish.cli journal.feed journal.plain net trio starlette hypercorn prometheus_client"
    ),
    "bedrockish/dbapi": (
        "bedrockish !bedrockish.core !bedrockish.engine bedrockish.engine.tokens !bedrockish.runtime "
        "!bedrockish.server apsw"
    ),
    "bedrockish/sqlalchemy": "bedrockish.addresses bedrockish.errors bedrockish.sqlalchemy sqlalchemy",
    "examples/shop": "examples.shop sqlalchemy",
    "examples/notes": "bedrockish flask",
    "bedrockish/cli/certificates.py": "bedrockish.errors cryptography",
    "bedrockish/cli": "bedrockish journal net apsw cbor2 click prompt_toolkit rich trio",
    "tests": (
        "bedrockish examples journal net tools tests alembic apsw cbor2 click hypothesis pexpect prometheus_client "
        "pyarrow pyspark pytest rich sortedcontainers sqlalchemy trio trustme"
    ),
    "tests/django_site": "bedrockish tests.django_site django",
    "tools": "bedrockish journal net tools apsw cbor2 click rich trio",
    "tools/checker": "tools.checker networkx",
    "tools/overhead.py": "bedrockish net tools click rich sqlalchemy trio",
    "tools/questions.py": "bedrockish journal tools trio pyspark",
    "tools/soundness.py": "bedrockish journal tools apsw hypothesis",
    "tools/soundness_cases.py": "bedrockish journal tools apsw hypothesis",
    "tools/bootstrap.py": "tools.java",
    "tools/java.py": "",
    "tools/check.py": "tools.java",
    "tools/make_demo_data.py": "",
}
# Run by name and not imported by any module: the programs. (A file with ``__main__`` in it is one anyway.)
ENTRY_POINTS = {"bedrockish.cli.main", "examples.notes.app", "tests.sqlalchemy_suite.plugin"}
# Names of things that write text, and places on the machine of whoever wrote it. Spelt so that this file passes.
FOREIGN_WORDS = re.compile(r"\b(cl[a]ude|chat[g]pt|anth[r]opic|open[a]i|cop[i]lot)\b", re.IGNORECASE)
FOREIGN_PATHS = re.compile(r"(?<![\w.:/-])/(?:root|home|Users|work|farm)/\w")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")


@cache
def tracked() -> tuple[Path, ...]:
    """Return every file that is, or is about to be, part of the project."""
    asked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if asked.returncode == 0:
        found = (ROOT / name for name in asked.stdout.split("\0") if name)
    else:  # an unpacked archive
        hidden = re.compile(r"(^|/)(\.(?!ci/)|build/|dist/|[^/]*\.egg-info/|__pycache__/)")
        found = (path for path in ROOT.rglob("*") if not hidden.search(name(path)))
    return tuple(sorted(path for path in found if path.is_file()))


def sources() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data:
            yield path, data.decode()


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module(path: Path) -> str:
    return name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> Iterator[str]:
    """Yield the full names that a file imports; ``from a import b`` is a.b if that is a module, else a."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                yield from (item.name for item in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                for item in names:
                    below = ROOT.joinpath(*origin.split("."), item.name)
                    yield f"{origin}.{item.name}" if below.with_suffix(".py").is_file() or below.is_dir() else origin
            case ast.ImportFrom():
                yield "a relative import"
            case _:
                pass


def named(path: Path) -> Iterator[str]:
    """Yield the modules that a file names in a text, to import them only when they are needed."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Constant(value=str(text)) if re.fullmatch(r"(bedrockish|journal|net|tools)(\.\w+)+", text):
                yield text
            case _:
                pass


def allowed(path: Path, imported: str) -> bool:
    place = name(path)
    rows = [row for row in MAY_IMPORT if place == row or place.startswith(row + "/")]
    if not rows:
        return True
    verdict, longest = imported.partition(".")[0] in sys.stdlib_module_names, -1
    for word in MAY_IMPORT[max(rows, key=len)].split():
        rule = word.removeprefix("!")
        if (imported == rule or imported.startswith(rule + ".")) and len(rule) > longest:
            verdict, longest = word == rule, len(rule)
    return verdict


def test_imports_point_down() -> None:
    """Packages look only into those below them; the core and the byte formats do no input or output."""
    wrong = [f"{name(path)} imports {x}" for path in sources() for x in imports(path) if not allowed(path, x)]
    assert not wrong


@pytest.mark.parametrize(
    ("place", "imported", "verdict"),
    [
        ("net/frame.py", "cbor2", True),
        ("net/frame.py", "trio", False),
        ("net/stream.py", "trio", True),
        ("net/frame.py", "bedrockish.errors", False),
        ("journal/order.py", "net.frame", False),
        ("journal/order.py", "time", False),
        ("journal/store.py", "apsw", True),
        ("journal/spark/source.py", "apsw", False),
        ("journal/spark/source.py", "sqlite3", True),
        ("bedrockish/core/node.py", "journal.vector", True),
        ("bedrockish/core/node.py", "journal.store", False),
        ("bedrockish/core/node.py", "bedrockish.engine.engine", False),
        ("bedrockish/core/node.py", "trio", False),
        ("bedrockish/core/node.py", "a relative import", False),
        ("bedrockish/engine/engine.py", "trio", False),
        ("bedrockish/client/trio_client.py", "bedrockish.core.node", False),
        ("tools/bootstrap.py", "rich", False),
    ],
)
def test_the_import_table_says_what_it_means(place: str, imported: str, verdict: bool) -> None:
    """A few imports whose verdict is known, so that the table cannot become toothless unnoticed."""
    assert allowed(ROOT / place, imported) is verdict


def test_files_are_short() -> None:
    """A file has one reason to exist, and fits into a head."""
    long = {name(p): n for p in sources() if (n := p.read_text().count("\n")) > FILE_LINES_MAX}
    assert not long


def test_functions_are_short() -> None:
    """A function can be read without scrolling."""
    long = {
        f"{name(path)}:{node.lineno} {node.name}": size
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert not long


def test_every_module_says_why_it_exists() -> None:
    """The head of each file tells a new reader what it is for."""
    assert not [name(p) for p in sources() if p.read_text().strip() and not ast.get_docstring(tree(p))]


def test_no_module_is_dead() -> None:
    """Every module is imported by another one that is not its test, or is a program."""
    used, helpers = set[str](), set[str]()
    for path in sources():
        (helpers if name(path).startswith("tests/") else used).update(imports(path), named(path))
    dead = []
    for path in sources():
        text, this = path.read_text(), module(path)
        if path.name in ("__init__.py", "conftest.py") or path.name.startswith("test_") or this in ENTRY_POINTS:
            continue
        if this.startswith("tests.django_site."):  # Django finds them by their names
            continue
        users = helpers if name(path).startswith("tests/") else used
        if '__name__ == "__main__"' not in text and this not in users:
            dead.append(name(path))
    assert not dead


def test_nothing_is_left_unfinished() -> None:
    """What is not done is not half in the tree."""
    assert not [f"{name(p)}: {m[0]}" for p, text in texts() for m in UNFINISHED.finditer(text)]


def test_nothing_foreign() -> None:
    """No place on somebody's machine, and no name of a tool that wrote text, is in the tree."""
    found = [f"{name(p)}: {m[0]}" for p, t in texts() for w in (FOREIGN_WORDS, FOREIGN_PATHS) for m in w.finditer(t)]
    assert not found


def test_foreign_things_are_recognised() -> None:
    """The patterns find what they are for, and leave ordinary text alone."""
    assert FOREIGN_WORDS.search("written by Cl" + "aude")
    assert FOREIGN_PATHS.search('open("' + "/ho" + 'me/me/x")')
    assert not FOREIGN_PATHS.search("/var/lib/bedrockish https://example.org/work/ or /usr/bin/env")


def test_programs_are_executable() -> None:
    """A file that begins with ``#!`` can be run, and only such a file is marked so."""
    wrong = [
        name(p) for p, text in texts() if text.startswith("#!") != bool(p.stat().st_mode & 0o111) and p.suffix != ".py"
    ]
    assert not wrong
