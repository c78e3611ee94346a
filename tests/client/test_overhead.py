"""The tool that measures the client's layers runs, and finds each of them."""

import pytest
from click.testing import CliRunner

from tools.overhead import main


@pytest.mark.cluster
def test_every_layer_is_measured_beside_the_bare_socket() -> None:
    done = CliRunner().invoke(main, ["--calls", "2", "--rounds", "1", "--profile", "3"])
    assert done.exit_code == 0, done.output
    assert done.output.count("×") == 10
    assert "function calls" in done.output
