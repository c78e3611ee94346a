"""A real headless browser, driven through its debugging pipe: no driver to install and no port to find."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)
# The browser reads commands from descriptor 3 and writes replies to 4.
PLACE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
BOUND_S = 30.0


def find_browser() -> str | None:
    """Return the program; None if the machine has none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class PageError(Exception):
    """Raised when the page or the browser behaves unexpectedly."""


class Browser:
    """One browser with one page; every wait has a bound."""

    def __init__(self, process: subprocess.Popen[bytes], read: int, write: int) -> None:
        self._process, self._read, self._write = process, read, write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []  # exceptions of scripts, and errors of the console
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to a page."""
        self._ask("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return what an expression of JavaScript gives."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise PageError(found["exceptionDetails"].get("exception", {}).get("description", "?"))
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """Return what an element shows."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait(self, condition: str, bound_s: float = BOUND_S) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + bound_s
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise PageError(f"not within {bound_s} s: {condition}; the page says: {self.text('body')[:2000]}")
            time.sleep(0.1)

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the screen."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write a picture of the page as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            self._note(reply)
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise PageError(f"{method}: {reply['error']['message']}")
                result: dict[str, Any] = reply["result"]
                return result

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case _:
                pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], BOUND_S)
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise PageError("the browser does not answer, or has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextlib.contextmanager
def open_browser(program: str, directory: Path) -> Iterator[Browser]:
    """Start a browser with a fresh profile in a directory, and end it after the block."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", PLACE, str(their_in), str(their_out), program, *FLAGS, f"--user-data-dir={directory}"],
        pass_fds=(their_in, their_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Browser(process, our_in, our_out)
    finally:
        os.close(our_out)
        os.close(our_in)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
