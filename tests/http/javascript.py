"""Programs on JavaScript's clients of libSQL, in ``tests/libsql``: their packages, and a run of one."""

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "libsql"
NPM = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
PROGRAMS = ("client.mjs", "dropin.cjs", "callbacks.cjs", "orm.mjs", "kysely.mjs")
PROGRAM_S, INSTALL_S = 120, 10 * 60


def install(source: Path, place: Path) -> Path:
    """Copy programs to a place and install the packages that they need, as locked; return the place."""
    place.mkdir()
    for file in source.iterdir():
        if file.is_file():
            shutil.copy(file, place)
    done = subprocess.run(NPM, cwd=place, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def generate(place: Path) -> Path:
    """Let Prisma write its client for the schema in a place; return the place.

    Its command line fetches an engine for migrations first, from Prisma's server. The tests do not need the engine, so
    a program that does nothing stands in for it.
    """
    settings = {"PRISMA_SCHEMA_ENGINE_BINARY": shutil.which("true") or "true", "CHECKPOINT_DISABLE": "1"}
    command = [str(place / "node_modules" / ".bin" / "prisma"), "generate", "--schema", "schema.prisma"]
    done = subprocess.run(
        command, cwd=place, env=os.environ | settings, capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def run(place: Path, program: str, url: str) -> tuple[int, str]:
    """Run a program with the URL of a database; return its status and its output."""
    command = ["node", program, url]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    return done.returncode, done.stdout + done.stderr
