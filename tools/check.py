"""Runs the phases of ``tools/test`` inside the private environment: style, form, types and tests, with timings."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bedrockish_journal.spark.session import why_no_java

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 75 * 60  # a longer phase is stopped, before continuous integration stops the whole run without a report
ENDING_S = 60  # time for an interrupted phase to clean up
SHARED = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")  # several processes, see tests/conftest.py


def run(name: str, command: Sequence[str]) -> tuple[int, str]:
    """Run one phase, whose output is not captured; return its status and a line for the summary."""
    print(f"=== {name}: {' '.join(command)}", flush=True)
    started = time.monotonic()
    running = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT)
    try:
        status = running.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"=== {name} was stopped after {LIMIT_S // 60} minutes", flush=True)
        status = 124
    # The phase gets Ctrl-C from the terminal as well: it stops its nodes and prints the failures.
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):
            running.wait(ENDING_S)
        raise
    finally:
        running.kill()
        running.wait()
    took = time.monotonic() - started
    print(f"=== {name}: {'ok' if status == 0 else f'FAILED ({status})'} in {took:.1f} s", flush=True)
    return status, f"{name} {'ok' if status == 0 else 'FAILED'} {took:.0f} s"


def main() -> int:
    """Run every phase, even after one failed, so that one run shows all failures."""
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        print("usage: tools/test [--quick] [--slow] [arguments for pytest]")
        print("  --quick  leave out the tests that start node processes or Spark")
        print("  --slow   run the long suites as well")
        return 0
    pytest = ["pytest", *SHARED, *(a for a in arguments if a != "--quick")]
    if "--quick" in arguments:
        pytest += ["-m", "not cluster and not spark"]
    if why := why_no_java():
        print(f"=== NOTE: the Spark tests will be SKIPPED: {why}", flush=True)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    done = [
        run("style", ["ruff", "check", "."]),
        run("form", ["ruff", "format", "--check", "."]),
        run("types", ["mypy"]),
        run("tests", pytest),
    ]
    if "--slow" in arguments:
        done.append(run("compliance", ["tools.compliance"]))
    print("===", " · ".join(line for _, line in done), flush=True)
    return next((status for status, _ in done if status), 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
