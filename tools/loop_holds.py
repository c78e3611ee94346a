"""Runs a node and writes down for how long its loop was held, and where: ``python -m tools.loop_holds OUTPUT serve …``.

A task of the loop that has the processor for long lets everybody else wait. Each step of a task is measured by the
thread's own time, so that other programs on the machine do not count, and by the wall; a thread looks every few
milliseconds where a step is that has taken long. ``tools/bench large --holds`` is what it is for.
"""

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from bedrockish.cli.main import main as serve

HELD_S = 0.02  # what is shorter is no hold
LOOK_S = 0.005
DEPTH = 6  # frames that are told


def place(frame: FrameType | None) -> str:
    """Return where a thread is, the innermost frames of the project's first."""
    found: list[str] = []
    while frame is not None and len(found) < DEPTH:
        name = frame.f_code.co_filename
        if "site-packages" not in name and "/lib/python" not in name:
            found.append(f"{Path(name).name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


class Holds(trio.abc.Instrument):
    """Notes the steps of tasks that take long."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._began: tuple[float, float] | None = None
        self._seen: Counter[str] = Counter()
        self._loop = threading.get_ident()
        threading.Thread(target=self._look, daemon=True).start()

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        self._seen = Counter()
        self._began = time.monotonic(), time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It waits again."""
        if self._began is None:
            return
        (since, had), self._began = self._began, None
        wall_s, busy_s = time.monotonic() - since, time.thread_time() - had
        if wall_s > HELD_S:
            where = self._seen.most_common(3)
            held = {"at": time.time(), "busy_ms": 1e3 * busy_s, "wall_ms": 1e3 * wall_s}
            self.found.append({**held, "task": task.name.rpartition(".")[2], "where": where})

    def _look(self) -> None:
        mine, last = threading.get_ident(), time.monotonic()
        while True:
            time.sleep(LOOK_S)
            now, began = time.monotonic(), self._began
            frames = sys._current_frames()
            if began is not None and now - began[0] > LOOK_S:
                self._seen[place(frames.get(self._loop))] += 1
            if now - last > LOOK_S + HELD_S:  # somebody had the interpreter, and may be near the place still
                held = {"at": time.time(), "busy_ms": 0.0, "wall_ms": 1e3 * (now - last), "task": "interpreter"}
                where = [(place(frame), 1) for thread, frame in frames.items() if thread != mine]
                self.found.append({**held, "where": where})
            last = now


def main() -> None:
    """Run the node, and write what was found when it ends."""
    output = Path(sys.argv[1])
    sys.argv = ["bedrockish", *sys.argv[2:]]
    run, holds = trio.run, Holds()

    def measured(*arguments: Any, **named: Any) -> Any:
        return run(*arguments, **named, instruments=[holds])

    trio.run = measured  # type: ignore[assignment]
    try:
        serve()
    finally:
        output.write_text("".join(json.dumps(one) + "\n" for one in holds.found), encoding="utf-8")


if __name__ == "__main__":
    main()
