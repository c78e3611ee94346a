"""docs/architecture.md names functions that exist."""

import ast
import re

from tests.test_tidy import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
STOP = re.compile(r"^\d+\. `([\w/.]+)` `([\w.]+)`", re.MULTILINE)


def test_architecture_page_has_ten_to_fifteen_stops() -> None:
    """A long list would not be read to its end."""
    assert 10 <= len(STOP.findall(PAGE)) <= 15


def test_every_stop_of_the_architecture_page_is_a_function_of_its_file() -> None:
    missing = [(file, name) for file, name in STOP.findall(PAGE) if name not in functions(file)]
    assert missing == []


def test_every_method_that_the_architecture_page_names_is_there() -> None:
    named = set(re.findall(r"`(_?[A-Z]\w*\.\w+)`", PAGE))
    files = [path for folder in ("bedrockish", "journal", "net") for path in (ROOT / folder).rglob("*.py")]
    found = {one for path in files for one in functions(str(path.relative_to(ROOT)))}
    assert len(named) > 40
    assert named - found == set()


def functions(file: str) -> set[str]:
    """Return the functions and methods of a file, by their qualified names."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            inside = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{one.name}" for one in inside}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found
