"""The limits of the machine: the memory that a process may take, and threads that find no memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from bedrockish.common import machine
from bedrockish.common.machine import memory_limit, why_refused
from bedrockish.config.config import build, warnings
from tools.cluster import clean_environment


@pytest.mark.parametrize(
    ("groups", "files", "bytes_max"),
    [
        (
            "0::/node.slice/a.service\n",
            {"node.slice/memory.max": "300\n", "node.slice/a.service/memory.max": "max\n"},
            300,
        ),
        ("0::/\n", {"memory.max": "200\n"}, 200),
        ("0::/\n", {}, sys.maxsize),
        ("5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "100\n"}, 100),
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": "100\n"}, 100),  # a container sees only its own
    ],
)
def test_memory_limit_is_the_smallest_of_the_control_groups(
    groups: str, files: dict[str, str], bytes_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text(groups)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "GROUPS_FOLDER", tmp_path / "fs")
    assert memory_limit() == min(bytes_max, machine._soft_limit("RLIMIT_AS"))


def test_node_warns_of_a_memory_limit_that_memory_max_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedrockish.config.config.memory_limit", lambda: 512 << 20)
    flags = {"node": "A", "database": "x"}
    (warned,) = warnings(build(flags=flags))
    assert "may take 512 MiB" in warned
    assert "set it to 256 MiB" in warned
    assert warnings(build(flags={**flags, "memory_max": str(256 << 20)})) == []


STARTS = """
import resource, threading
from bedrockish.common.machine import start_thread, why_refused
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (12 << 20),) * 2)  # room for the stack, and hardly for more
try:
    start_thread(threading.Thread(target=print, args=["it runs"]).start)
except MemoryError as error:
    print(why_refused(error))
"""


def test_thread_without_memory_for_its_first_steps_is_not_started() -> None:
    """Otherwise Python would wait for ever for this thread: the node's loop would stop, and its process not end."""
    told = subprocess.run(
        [sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=60, check=True, env=clean_environment()
    )
    assert told.stdout.startswith("the machine gives no more memory; raise the limit of memory (ulimit -v"), told


def test_panic_of_cbor2_without_memory_is_a_lack_of_memory() -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    assert "ulimit -v" in why_refused(panic("PyObject pointer is null"))
    assert "ulimit -v" in why_refused(panic("assertion failed: !(*writer).obj.is_null()"))
    assert why_refused(panic("index out of bounds")) == ""
