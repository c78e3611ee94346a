"""The OpenAPI document: every path is in it, and a property-based tester finds nothing at a running node."""

import subprocess
import sys
from pathlib import Path

import pytest

from bedrockish.http.openapi import document
from tests.http.conftest import Asker

# Not every text is SQL that fits the database, so a body that fits the document may still be answered with 400.
LEFT_OUT = "positive_data_acceptance"


def test_every_path_is_in_the_document() -> None:
    app = (Path(__file__).parents[2] / "bedrockish" / "http" / "app.py").read_text()
    page = {"/", "/page/{name}", "/favicon.ico"}
    routes = {line.split('"')[1] for line in app.splitlines() if line.strip().startswith("Route(")}
    assert routes - page == document()["paths"].keys()


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
