"""Runs the phases of ``tools/test`` inside the private environment: style, form, types and tests, with timings."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.java import ADVICE, find_java

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 75 * 60  # a phase that takes longer hangs; it must fail before the limit of continuous integration
ENDING_S = 60  # time for an interrupted phase to clean up
SHARED = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")  # in processes, see tests/conftest.py


def run(name: str, command: Sequence[str]) -> tuple[int, str]:
    """Run one phase with its output going straight through; return its status and a line for the end."""
    print(f"=== {name}: {' '.join(command)}", flush=True)
    started = time.monotonic()
    running = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT)
    try:
        status = _wait(name, running)
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


def _wait(name: str, running: subprocess.Popen[bytes]) -> int:
    try:
        return running.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"=== {name} was stopped after {LIMIT_S // 60} minutes", flush=True)
        return 124


@contextmanager
def beside(name: str, command: Sequence[str]) -> Iterator[Callable[[], tuple[int, str]]]:
    """Run a phase in parallel with those in the block; return a function that waits for it, prints its output, and
    returns as ``run``.

    Its output would be torn between theirs. Where the block ends without asking for it, it is ended.
    """
    with tempfile.TemporaryFile() as said:
        running = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)

        def end() -> tuple[int, str]:
            print(f"=== {name}, which ran beside: {' '.join(command)}", flush=True)
            status = _wait(name, running)
            said.seek(0)
            print(said.read().decode(errors="replace").rstrip(), flush=True)
            how = "ok" if status == 0 else f"FAILED ({status})"
            print(f"=== {name}: {how}", flush=True)
            return status, f"{name} {how}"

        try:
            yield end
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()


def main() -> int:
    """Run every phase, even after one failed, so that one run shows all failures.

    Types are checked in parallel with the tests, because the first tests need only one processor.
    """
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        print("usage: tools/test [--quick] [--slow] [arguments for pytest]")
        print("  --quick  leave out the tests that start node processes or Spark")
        print("  --slow   run the long suites as well")
        return 0
    pytest = ["pytest", *SHARED, *(a for a in arguments if a != "--quick")]
    if "--quick" in arguments:
        pytest += ["-m", "not cluster and not spark"]
    java, found = find_java()
    if java is None:
        print(f"=== NOTE: the Spark tests will be SKIPPED: {found}; {ADVICE}", flush=True)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with beside("types", ["mypy"]) as types:
        done = [
            run("style", ["ruff", "check", "."]),
            run("form", ["ruff", "format", "--check", "."]),
            run("tests", pytest),
            types(),
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
