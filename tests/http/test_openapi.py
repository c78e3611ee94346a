"""The OpenAPI document: it is OpenAPI, the server keeps to it, and a property-based tester finds nothing at a node."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from openapi_spec_validator import validate
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

from bedrockish.http.openapi import OPERATIONS, document
from bedrockish_journal.feed.change_feed import Cursor, cursor_of_copy
from tests.http import tester_hooks
from tests.http.conftest import Asker
from tools.cluster import clean_environment

# Not every text is SQL that fits the database, so a body that fits the document may still be answered with 400.
LEFT_OUT = "positive_data_acceptance"


def test_the_document_is_openapi() -> None:
    """As others understand the standard, with every reference in it; and it takes no nonsense for it."""
    validate(document())
    broken = document()
    broken["paths"]["/livez"]["get"]["responses"] = {"200": {}}
    with pytest.raises(OpenAPIValidationError):
        validate(broken)
    assert len({one.handler for one in OPERATIONS}) == len(OPERATIONS), "the id of each operation is its own"


@pytest.mark.cluster
def test_the_document_and_the_server_agree(node: Asker) -> None:
    """Documented methods are answered, and all others are refused."""
    paths = node("/openapi.json").json["paths"]
    assert paths == document()["paths"]
    for path, methods in paths.items():
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            reply = node(path.replace("{name}", "nobody"), b"{" if method == "POST" else None, method=method)
            assert (reply.status == 405) == (method.lower() not in methods), (method, path)
            if reply.status == 405:
                allowed = {one.strip().lower() for one in reply.headers["allow"].split(",")} - {"head"}
                assert allowed == set(methods)


def test_the_cursors_that_a_feed_gives_are_in_the_document() -> None:
    """Real clocks, those of copies, and the place before the first transaction."""
    (after,) = (one for one in document()["paths"]["/changes"]["get"]["parameters"] if one["name"] == "after")
    pattern = after["schema"]["pattern"]
    real = Cursor(7530532432114614272, "A")
    for good in ("", str(real), str(cursor_of_copy(real.clock - 1, [(real.clock, "Node_2")]))):
        assert re.search(pattern, good), good
    for bad in ("x", "1", "1-A", "-1.A", "1.A+", "9" * 20 + ".A", "1." + "A" * 65):
        assert not re.search(pattern, bad), bad


def test_tester_waits_less_and_is_refused_the_same() -> None:
    """The hook shortens what a node would do, and leaves alone what it has to refuse."""
    for given, sent in (
        ("300", "0.5"),
        (0.1, 0.1),
        ("301", "301"),
        ("nan", "nan"),
        ("x", "x"),
        (["1", "2"], ["1", "2"]),
    ):
        case = SimpleNamespace(query={"wait": given, "follow": "true", "limit": "0"})
        tester_hooks.shorten(case)
        assert case.query == {"wait": sent, "follow": "false", "limit": "0"}


@pytest.mark.slow
@pytest.mark.cluster
def test_a_property_based_tester_accepts_a_live_node(node: Asker, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"),
            *("run", f"http://127.0.0.1:{node.port}/openapi.json", "--exclude-checks", LEFT_OUT),
            *("--max-examples", "60", "--generation-database", "none", "--seed", "7", "--no-color"),
        ],
        cwd=tmp_path,
        env=clean_environment() | {"SCHEMATHESIS_HOOKS": tester_hooks.__name__},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Operations:" in done.stdout
    assert node("/livez").status == 200
    log = node.cluster.nodes[0].log.read_text()
    assert "Traceback" not in log, log[-3000:]
