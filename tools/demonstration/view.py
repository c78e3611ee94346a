"""The demo's display: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tools.cluster import LocalCluster
from tools.demonstration.check import Check
from tools.demonstration.work import Tally

PLAIN_EVERY_S = 3.0


class View:
    """The demo's screen."""

    def __init__(self, console: Console, cluster: LocalCluster, tally: Tally) -> None:
        self.console = console
        self.cluster = cluster
        self.tally = tally
        self.vectors: list[dict[str, int] | None] = [None for _ in cluster.nodes]
        self.elapsed_s = 0.0
        self._live: Live | None = None
        self._printed_s = -PLAIN_EVERY_S

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the table during the block."""
        if not self.console.is_terminal:
            yield
            return
        with Live(self._table(), console=self.console, refresh_per_second=8) as self._live:
            yield
            self._live.update(self._table())
        self._live = None

    def update(self, elapsed_s: float, vectors: list[dict[str, int] | None]) -> None:
        """Show the present state."""
        self.elapsed_s, self.vectors = elapsed_s, vectors
        if self._live is not None:
            self._live.update(self._table())
        elif elapsed_s - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = elapsed_s
            led = "  ".join(f"{node.name} {self._state(i)}" for i, node in enumerate(self.cluster.nodes))
            self.console.print(f"{elapsed_s:5.1f} s  {len(self.tally.promised):6} commits  {self._fights()}  |  {led}")

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self.console.print(text)

    def _vector(self, index: int) -> str:
        """Return a node's vector in the notation of the protocol: one place for each leader."""
        vector = self.vectors[index]
        if vector is None:
            return ""
        return "[" + ", ".join(str(vector.get(node.name, 0)) for node in self.cluster.nodes) + "]"

    def _state(self, index: int) -> str:
        if not self.cluster.nodes[index].is_running:
            return "DOWN"
        return self._vector(index) or "starting"

    def _fights(self) -> str:
        tally = self.tally
        return f"{tally.retries + tally.conflicts} conflicts met, {tally.lost} answers asked again"

    def _table(self) -> Table:
        rate = len(self.tally.promised) / self.elapsed_s if self.elapsed_s else 0.0
        caption = f"{len(self.tally.promised)} transfers promised, {rate:.0f} a second; {self._fights()}"
        table = Table(title=f"{self.elapsed_s:.0f} s", caption=caption, title_justify="left", caption_justify="left")
        for head, justify in (("node", "left"), ("state", "left"), ("transfers led", "right"), ("vector", "left")):
            table.add_column(head, justify="right" if justify == "right" else "left", min_width=9)
        for index, node in enumerate(self.cluster.nodes):
            up = node.is_running
            state = "[red]down[/]" if not up else "[green]up[/]" if self.vectors[index] else "[yellow]starting[/]"
            table.add_row(node.name, state, str(self.tally.led.get(node.name, 0)), self._vector(index))
        return table


def print_checks(console: Console, checks: list[Check]) -> None:
    """Print every promise and whether it was kept; equal results of several nodes are on one line."""
    alike: dict[tuple[str, bool, str], list[str]] = {}
    for check in checks:
        alike.setdefault((check.promise, check.kept, check.found), []).append(check.node)
    for (promise, kept, found), nodes in alike.items():
        verdict = "[green]kept  [/]" if kept else "[bold red]BROKEN[/]"
        console.print(f"   {verdict} {promise:<44}{' '.join(filter(None, nodes)):<7}", end="")
        console.print(found, markup=False)
