"""The house rules that a machine can check: imports, lengths, and forbidden texts."""

import ast
import gc
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from io import StringIO
from pathlib import Path

import pytest

from tests.prose import RULES, count_and_faults, documented

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES_MAX, FUNCTION_LINES_MAX = 600, 70  # lines of code: comments do not count
PREDICATE, TELLS = re.compile("_?(?:is|has|may|can)_"), re.compile("Return|Whether|True|False|The state")
METHODS_MAX, ATTRIBUTES_MAX = 25, 15  # public methods of a class, and attributes that it sets

# The imports that each file may have: the row of the longest matching path holds. A name allows itself and all below
# it; ``!name`` takes that away again. The standard library is allowed except where a row says otherwise.
IO = "!asyncio !logging !os !pathlib !random !secrets !select !socket !sqlite3 !subprocess !tempfile !threading !time"
MODEL = "bedrockish_journal.model"
JOURNAL = "bedrockish_journal !bedrockish_journal.spark !bedrockish_journal.audit"
MAY_IMPORT = {
    "net": f"bedrockish_net cbor2 {IO}",
    "net/bedrockish_net/handshake.py": "bedrockish_net trio",
    "net/bedrockish_net/listening.py": "trio",
    "net/bedrockish_net/local_socket.py": "",
    "net/bedrockish_net/stream.py": "bedrockish_net trio",
    "net/bedrockish_net/read_loop.py": "select trio",
    "net/bedrockish_net/socket_link.py": "bedrockish_net",
    "net/bedrockish_net/mesh.py": "bedrockish_net trio cbor2",
    "net/bedrockish_net/tls.py": "bedrockish_net trio",
    "journal/bedrockish_journal/model": f"{MODEL} cbor2 sortedcontainers {IO}",
    "journal/bedrockish_journal/feed": f"{MODEL} bedrockish_journal.feed cbor2 {IO}",
    "journal/bedrockish_journal": f"{JOURNAL} apsw cbor2",
    "journal/bedrockish_journal/arrow.py": "bedrockish_journal.spark pyarrow",
    # The one file that reads running nodes instead of files, as any client does.
    "journal/bedrockish_journal/spark/source/live.py": (
        "bedrockish_journal bedrockish.api bedrockish.client bedrockish.errors"
    ),
    "journal/bedrockish_journal/spark": (
        "bedrockish_journal !bedrockish_journal.verify.replay pyspark pyarrow cbor2 apsw !trio"
    ),
    "journal/bedrockish_journal/audit/duck.py": "bedrockish_journal !bedrockish_journal.verify duckdb pyarrow",
    "journal/bedrockish_journal/audit": (
        "bedrockish_journal !bedrockish_journal.storage.store !bedrockish_journal.verify pyspark pyarrow !apsw !trio"
    ),
    "journal/pyspark_bedrockish": "bedrockish_journal.spark",
    "bedrockish": f"bedrockish {JOURNAL} bedrockish_net cbor2 trio",
    "bedrockish/core": (
        f"bedrockish.core bedrockish.errors bedrockish.api bedrockish.common cbor2 sortedcontainers {MODEL} {IO}"
    ),
    "bedrockish/api": f"bedrockish.api bedrockish.common bedrockish.errors bedrockish.sqltext {MODEL} cbor2 {IO}",
    # Where a statement ends is SQLite's own knowledge: one pure function of sqlite3 is used.
    "bedrockish/sqltext": "bedrockish.sqltext bedrockish.errors !trio !apsw !socket !asyncio !threading !time",
    "bedrockish/node/plugins.py": "bedrockish apsw",
    # Usable without a node: nothing of the protocol, the wire or the engine.
    "bedrockish/access_sets": (
        "bedrockish.access_sets bedrockish.common bedrockish.errors bedrockish.sqltext "
        "bedrockish_journal.model bedrockish_journal.storage apsw !trio !asyncio !socket !time !random !tempfile"
    ),
    "bedrockish/engine": (
        "bedrockish.engine bedrockish.access_sets bedrockish.errors bedrockish.api bedrockish.common "
        f"bedrockish.sqltext bedrockish.core.protocol {JOURNAL} apsw cbor2 sortedcontainers !socket !asyncio !random"
    ),
    # Reads and transactions on a node's file in a program: the package needs neither a loop nor a node.
    "bedrockish/local": (
        "bedrockish.local bedrockish.engine bedrockish.access_sets bedrockish.errors bedrockish.api bedrockish.common "
        f"bedrockish.sqltext bedrockish.core.protocol {JOURNAL} apsw cbor2 !trio !asyncio !socket"
    ),
    "bedrockish/client": (
        "bedrockish !bedrockish.core !bedrockish.engine !bedrockish.node bedrockish_net bedrockish_journal cbor2 trio"
    ),
    "bedrockish/testing.py": "bedrockish.embedded pytest",
    "bedrockish/http": (
        "bedrockish !bedrockish.cli bedrockish_journal.feed bedrockish_net trio httptools prometheus_client"
    ),
    "bedrockish/dbapi": "bedrockish !bedrockish.core !bedrockish.engine !bedrockish.node apsw "
    "bedrockish_journal.model.plain_names bedrockish_journal.storage.virtual_tables",
    "bedrockish/django": "bedrockish.common bedrockish.django bedrockish.dbapi apsw django",
    "bedrockish/sqlalchemy": "bedrockish.api bedrockish.common bedrockish.errors bedrockish.sqlalchemy sqlalchemy",
    "examples/shop": "examples.shop sqlalchemy",
    "examples/notes": "bedrockish flask",
    "bedrockish/cli/certificates.py": "bedrockish.common.durable_files bedrockish.errors cryptography",
    "bedrockish/cli": "bedrockish bedrockish_journal bedrockish_net apsw cbor2 click prompt_toolkit rich trio",
    "tests": (
        "bedrockish bedrockish_journal bedrockish_net pyspark_bedrockish examples tools tests alembic apsw cbor2 "
        "click duckdb hypothesis libsql "
        "pexpect prometheus_client pyarrow pyspark pytest "
        "rich sortedcontainers sqlalchemy trio trustme xdist yaml "
        "sqlite_utils"
    ),
    "tests/compliance/test_programs.py": (
        "tools.compliance pytest sqlmodel flask flask_sqlalchemy pandas celery sqlalchemy dataset records sqlite_utils"
    ),
    "tests/django_site": "bedrockish tests.django_site django",
    "tools": "bedrockish bedrockish_journal bedrockish_net tools apsw cbor2 click rich trio",
    "tools/checker": "tools.checker networkx",
    "tools/compliance/django_runner.py": "tools.compliance django",
    "tools/bootstrap.py": "bedrockish_journal.spark.session",
    "tools/check.py": "bedrockish_journal.spark.session",
}
# The floors of the house, from the ground up. A file looks into its own room and into rooms on floors below; rooms of
# one line are neighbours that do not know each other. The longest matching name says where a file is.
FLOORS = (
    "bedrockish bedrockish.errors",
    "bedrockish_net bedrockish_journal.model",
    "bedrockish.common",
    "bedrockish_journal.feed bedrockish_journal.storage",
    "bedrockish_journal bedrockish_journal.verify",
    "bedrockish.sqltext",
    "bedrockish.access_sets",
    "bedrockish.api",
    "bedrockish.core.protocol",
    "bedrockish.core.state",
    "bedrockish.core.replica",
    "bedrockish.core.coordinator",
    "bedrockish.core.recovery",
    "bedrockish.core",
    "bedrockish.engine.sqlite",
    "bedrockish.engine.derived",
    "bedrockish.engine.statements",
    "bedrockish.engine.storage",
    "bedrockish.engine.execution",
    "bedrockish.engine",
    "bedrockish.local",
    "bedrockish.client.sansio",
    "bedrockish.client",
    "bedrockish_journal.spark bedrockish.embedded",
    "bedrockish.testing",
    "pyspark_bedrockish bedrockish.config bedrockish_journal.audit bedrockish_journal.arrow",
    "bedrockish.node.scheduling",
    "bedrockish.node.cluster bedrockish.node.transactions bedrockish.node.admin",
    "bedrockish.node.repair",
    "bedrockish.node",
    "bedrockish.http bedrockish.transfer bedrockish.dbapi bedrockish.sqlalchemy",
    "bedrockish.django",
    "bedrockish.daemon",
    "bedrockish.cli",
    "bedrockish.__main__",
)
FLOOR = {room: number for number, line in enumerate(FLOORS) for room in line.split()}
# Run by name, or imported by users only, and not by any module. (A file with ``__main__`` in it is a program anyway.)
# Django and its like find theirs by their names.
ENTRY_POINTS = {
    "bedrockish.__main__",
    "bedrockish.cli.main",
    "bedrockish.django.base",
    "bedrockish.django.functions",
    "bedrockish.sqlalchemy.asynchronous",
    "bedrockish.testing",
    "bedrockish_journal.arrow",
    "examples.notes.app",
    "tests.sqlalchemy_suite.plugin",
    "tools.compliance.django_runner",
    "tools.compliance.django_settings",
}
# How many texts of a folder may break a rule of ``tests/prose.py``; the longest matching path counts. These numbers
# only ever fall: rewrite a sentence, then lower its number.
PROSE_FAULTS_MAX = {
    "bedrockish": 0,
    "bedrockish/access_sets": 0,
    "bedrockish/api": 0,
    "bedrockish/cli": 0,
    "bedrockish/client": 0,
    "bedrockish/common": 0,
    "bedrockish/config": 0,
    "bedrockish/core": 0,
    "bedrockish/dbapi": 0,
    "bedrockish/django": 0,
    "bedrockish/engine": 0,
    "bedrockish/http": 0,
    "bedrockish/local": 0,
    "bedrockish/node": 0,
    "bedrockish/sqlalchemy": 0,
    "bedrockish/sqltext": 0,
    "bedrockish/transfer": 1,
    "journal": 0,
    "net": 0,
    "tools": 0,
    "tests": 0,
    "examples": 0,
    "docs": 31,
    "README.md": 0,
    "CHANGELOG.md": 0,
    "CONTRIBUTING.md": 0,
}
# Names that several classes share: those that PEP 249 and users know from every interface, and kinds of messages,
# events, effects and calls, which are written with their module, as in ``say.Ask`` and ``on.Received``.
SHARED_NAMES = {
    *("Connection", "Cursor", "InternalError", "Node", "Session", "Transaction"),
    *("Ask", "Execute", "Failed", "PeerDown", "PeerUp", "Received", "Send"),
}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# Foreign names, and paths of an author's machine, that no file may contain; spelt so that this file passes.
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
    inside = re.sub(r"^(journal|net)/", "", name(path))
    return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Parse all files. Collections of garbage leave the trees alone: they took most of the time."""
    gc.disable()
    try:
        for path in sources():
            nodes(path)
        gc.freeze()
    finally:
        gc.enable()
    yield
    gc.unfreeze()
    tree.cache_clear()
    nodes.cache_clear()


@cache
def is_module(full: str) -> bool:
    """Say whether a dotted name is a module or a package of this checkout."""
    places = (root.joinpath(*full.split(".")) for root in (ROOT, ROOT / "journal", ROOT / "net"))
    return any(place.with_suffix(".py").is_file() or (place / "__init__.py").is_file() for place in places)


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the full names that a file imports; ``from a import b`` is a.b if that is a module, else a."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        match node:
            case ast.Import(names=names):
                yield from (item.name for item in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                yield from (f"{origin}.{item.name}" if is_module(f"{origin}.{item.name}") else origin for item in names)
            case ast.ImportFrom():
                yield "a relative import"
            case _:
                pass


def named(path: Path) -> Iterator[str]:
    """Yield the modules that a file names in a text, to import them, or a name in them, when they are needed."""
    for node in nodes(path):
        match node:
            case ast.Constant(value=str(text)) if re.fullmatch(
                r"(bedrockish|bedrockish_journal|bedrockish_net|tools)(\.\w+)+(:\w+)?", text
            ):
                yield text.partition(":")[0]
            case _:
                pass


STANDARD = {*sys.stdlib_module_names, "annotationlib"}  # annotationlib exists from Python 3.14 on


def allowed(path: Path, imported: str) -> bool:
    place = name(path)
    rows = [row for row in MAY_IMPORT if place == row or place.startswith(row + "/")]
    if not rows:
        return True
    verdict, longest = imported.partition(".")[0] in STANDARD, -1
    for word in MAY_IMPORT[max(rows, key=len)].split():
        rule = word.removeprefix("!")
        if (imported == rule or imported.startswith(rule + ".")) and len(rule) > longest:
            verdict, longest = word == rule, len(rule)
    return verdict


def test_imports_lead_only_to_packages_below() -> None:
    """Packages look only into those below them; the core and the byte formats do no input or output."""
    wrong = [f"{name(path)} imports {x}" for path in sources() for x in imports(path) if not allowed(path, x)]
    assert not wrong


def room(full: str) -> str:
    """Return the room of FLOORS that a module is in, or nothing for modules outside."""
    fits = [one for one in FLOOR if full == one or full.startswith(one + ".")]
    found = max(fits, key=len, default="")
    return "" if found == "bedrockish" and full != "bedrockish" else found


def test_every_package_has_a_floor_in_the_import_order() -> None:
    """Each new folder must be assigned to a floor."""
    assert not [
        name(p) for p in sources() if name(p).startswith(("bedrockish", "journal/", "net/")) and not room(module(p))
    ]


def test_packages_import_only_from_floors_below() -> None:
    """No file imports from a floor above, or from a neighbour on the same floor: so the rooms form no circle."""
    wrong = []
    for path in sources():
        here = room(module(path))
        for full in imports(path) if here and here != "bedrockish" else ():
            there = room(full)
            if there and there != here and FLOOR[there] >= FLOOR[here]:
                wrong.append(f"{name(path)} imports {full}")
    assert not wrong


def test_imports_form_no_circle() -> None:
    """The import graph of files has no circle: each file can be read, and tested, without its users.

    The files of the simulator still know each other's types, and count as one.
    """
    below = {module(p): {one(x) for x in imports(p) if is_module(x)} for p in sources()}
    order = TopologicalSorter({one(this): set[str]() for this in below})
    for this, others in below.items():
        order.add(one(this), *(other for other in others if other in below and other != one(this)))
    circle: list[str] = []
    try:
        order.prepare()
    except CycleError as error:
        circle = error.args[1]
    assert not circle


def one(full: str) -> str:
    return "tools.sim.world" if full.startswith("tools.sim.") else full


@pytest.mark.parametrize(
    ("place", "imported", "verdict"),
    [
        ("net/bedrockish_net/frame.py", "cbor2", True),
        ("net/bedrockish_net/frame.py", "trio", False),
        ("net/bedrockish_net/stream.py", "trio", True),
        ("net/bedrockish_net/frame.py", "bedrockish.errors", False),
        ("journal/bedrockish_journal/model/order.py", "bedrockish_net.frame", False),
        ("journal/bedrockish_journal/model/order.py", "time", False),
        ("journal/bedrockish_journal/storage/store.py", "apsw", True),
        ("journal/bedrockish_journal/spark/source/source.py", "trio", False),
        ("journal/bedrockish_journal/spark/source/source.py", "sqlite3", True),
        ("bedrockish/core/node.py", "bedrockish_journal.model.vector", True),
        ("bedrockish/core/node.py", "bedrockish_journal.storage.store", False),
        ("bedrockish/core/node.py", "bedrockish.engine.engine", False),
        ("bedrockish/core/node.py", "trio", False),
        ("bedrockish/core/node.py", "a relative import", False),
        ("bedrockish/engine/engine.py", "trio", False),
        ("bedrockish/client/trio_client.py", "bedrockish.core.node", False),
        ("tools/bootstrap.py", "rich", False),
    ],
)
def test_import_table_judges_known_imports(place: str, imported: str, verdict: bool) -> None:
    """A few imports with a known verdict, so that a table that forbids nothing fails."""
    assert allowed(ROOT / place, imported) is verdict


def test_files_are_short() -> None:
    """A file has one reason to exist, and fits into a head. Docstrings, comments and empty lines do not count."""
    long = [path for path in sources() if path.read_bytes().count(b"\n") > FILE_LINES_MAX]
    assert not {name(path): size for path in long if (size := code_lines(path)) > FILE_LINES_MAX}


def test_a_name_of_a_class_names_one_class() -> None:
    places = defaultdict[str, list[str]](list)
    for path in sources():
        if name(path).startswith(("bedrockish/", "journal/", "net/")):
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(name(path))
    assert not {one: found for one, found in places.items() if len(found) > 1 and one not in SHARED_NAMES}
    assert all(len(places[one]) > 1 for one in SHARED_NAMES), "leave out names that one class has"


def code_lines(path: Path) -> int:
    """Count the lines of a file that hold code."""
    lines = set[int]()
    for token in tokenize.generate_tokens(StringIO(path.read_text()).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree(path)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_functions_are_short() -> None:
    """A function can be read without scrolling."""
    long = {
        f"{name(path)}:{node.lineno} {node.name}": size
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert not long


def public_methods(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's own public methods and properties."""
    return {one.name for one in methods(node) if not one.name.startswith("_")}


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that a class sets on its first argument, or declares, unless it is a record that never changes.

    The fields of such a record are data, each with its line in the docstring, and no state.
    """
    found = set[str]()
    if not is_constant(node):
        declared = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
        found = {one.id for one in declared if isinstance(one, ast.Name)}
    for method in methods(node):
        me = method.args.args[0].arg if method.args.args else ""
        for one in ast.walk(method):
            match one:
                case ast.Attribute(value=ast.Name(id=owner), attr=attr, ctx=ast.Store()) if owner == me:
                    found.add(attr)
                case _:
                    pass
    return found


def is_constant(node: ast.ClassDef) -> bool:
    """Return whether a class is a record whose fields are set once, or only describes another class."""
    marks = {ast.unparse(one) for one in node.bases} | {ast.unparse(one) for one in node.decorator_list}
    return not marks.isdisjoint({"value", "NamedTuple", "Protocol"}) or any("frozen=True" in mark for mark in marks)


def is_large(node: ast.ClassDef) -> bool:
    return len(public_methods(node)) > METHODS_MAX or len(attributes(node)) > ATTRIBUTES_MAX


def says_why(node: ast.ClassDef) -> bool:
    return re.search(r"^Why so large: \S", ast.get_docstring(node) or "", re.MULTILINE) is not None


def test_large_class_has_a_why_so_large_paragraph() -> None:
    """A class has few methods and attributes, or a paragraph "Why so large:" in its docstring, and only then."""
    places = ("bedrockish/", "journal/", "net/", "tools/")
    classes = [
        (f"{name(path)}:{node.lineno} {node.name}", node)
        for path in sources()
        if name(path).startswith(places)
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    ]
    assert not {
        where: (len(public_methods(node)), len(attributes(node)))
        for where, node in classes
        if is_large(node) != says_why(node)
    }


def test_counting_of_methods_and_attributes_finds_all_of_a_known_class() -> None:
    """A counter that misses some of them would make the limits of classes useless."""
    text = """
class Known:
    field: int = 0

    def __init__(self, given):
        self.one, (self.two, given.other) = given
        self.three: int = 3

    @property
    def shown(self):
        return self.four

    async def act(this):
        with given as this.five:
            this.one += 1

    def _hidden(self):
        self.six["key"] = 1
"""
    known, constant = ast.parse(f"{text}\n@dataclass(frozen=True)\n{text.lstrip()}").body
    assert isinstance(known, ast.ClassDef)
    assert isinstance(constant, ast.ClassDef)
    assert public_methods(known) == {"shown", "act"}
    assert attributes(known) == {"field", "one", "two", "three", "five"}
    assert attributes(constant) == {"one", "two", "three", "five"}


def test_every_module_says_why_it_exists() -> None:
    """The docstring of each module states its purpose to a new reader."""
    assert not [name(p) for p in sources() if p.read_text().strip() and not ast.get_docstring(tree(p))]


def test_docstrings_of_predicates_only_return_a_fact() -> None:
    """A function ``is_…`` or ``has_…`` returns a fact and changes nothing."""
    found = []
    for path in sources():
        for node in [one for one in documented(path.read_text()) if isinstance(one, ast.FunctionDef)]:
            told = ast.get_docstring(node) or "Return"
            if PREDICATE.match(node.name) and not name(path).startswith("tests/") and not TELLS.match(told):
                found.append(f"{name(path)} {node.name}")
    assert found == []


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
        if this.startswith("tools.scenarios.") and "@click.command" in text:  # found by their names
            continue
        users = helpers if name(path).startswith("tests/") else used
        if '__name__ == "__main__"' not in text and this not in users:
            dead.append(name(path))
    assert not dead


def test_prose_does_not_get_worse() -> None:
    """Fewer sentences break a rule of writing than ever before; ``python -m tests.prose PATH`` lists them."""
    found = dict.fromkeys(PROSE_FAULTS_MAX, 0)
    for path in tracked():
        fits = [one for one in found if f"{name(path)}/".startswith(f"{one}/")]
        if fits and path.suffix in (".py", ".md"):
            found[max(fits, key=len)] += len(count_and_faults(path)[1])
    assert not {place: count for place, count in found.items() if count > PROSE_FAULTS_MAX[place]}


def test_prose_rules_recognise_their_examples() -> None:
    """Each rule finds a sentence that breaks it, and leaves the plain one alone."""
    bad = [
        "Who asks waits. A request waits.",
        "Sent to whoever asks. Sent to the caller.",
        "A learner is no voter. A learner is not a voter.",
        "There is nothing to send. The queue is empty.",
        "Read by nobody. No client reads it.",
        "Built anew. Built again.",
        "The node and his peers. The node and its peers.",
        "Whether it is open. Return whether it is open.",
        "The node, that is down. The node that is down.",
    ]
    broken = [[rule for rule, pattern in RULES.items() if pattern.search(text.split(". ")[0] + ".")] for text in bad]
    assert sorted({rule for rules in broken for rule in rules}) == sorted(RULES)
    assert all(broken)
    assert not [text for text in bad if any(pattern.search(text.split(". ")[1]) for pattern in RULES.values())]


def test_sources_have_no_todo_markers() -> None:
    """The tree has no marker of unfinished work."""
    assert not [f"{name(p)}: {m[0]}" for p, text in texts() for m in UNFINISHED.finditer(text)]


def test_tree_has_no_foreign_words() -> None:
    """The tree names no path of the author's machine, and no tool that wrote text."""
    found = [f"{name(p)}: {m[0]}" for p, t in texts() for w in (FOREIGN_WORDS, FOREIGN_PATHS) for m in w.finditer(t)]
    assert not found


def test_patterns_for_foreign_words_and_paths_match() -> None:
    """The patterns find what they are for, and leave ordinary text alone."""
    assert FOREIGN_WORDS.search("written by Cl" + "aude")
    assert FOREIGN_PATHS.search('open("' + "/ho" + 'me/me/x")')
    assert not FOREIGN_PATHS.search("/var/lib/bedrockish https://example.org/work/ or /usr/bin/env")


def test_only_known_files_are_not_text() -> None:
    """The tree contains no database, lock or other leftover of a run."""
    files = {path: path.read_bytes() for path in tracked()}
    other = {name(path) for path, data in files.items() if b"\0" in data or (not data and path.suffix == ".lock")}
    assert not {one for one in other if not one.endswith(".png")} - {"tools/data/timezones.sqlite"}


def test_programs_are_executable() -> None:
    """A file that begins with ``#!`` can be run, and only such a file is marked so."""
    wrong = [
        name(p) for p, text in texts() if text.startswith("#!") != bool(p.stat().st_mode & 0o111) and p.suffix != ".py"
    ]
    assert not wrong
