"""The demo: a SQLite database on three nodes, competing writers at each node, a killed node, and the proof.

It ends with status 0 only if every promise was kept; 1 if one was broken; 2 if it could not run at all.
"""

import random
import subprocess
import sys
import time
import uuid
from pathlib import Path

import click
import trio
from rich.console import Console

from bedrockish import open_client
from bedrockish.errors import BedrockishError
from bedrockish.transfer.load_database import load
from bedrockish_journal.spark.session import why_no_java
from tools.cluster import DemoError, LocalCluster, LocalNode, clean_environment, local_cluster, unwrap
from tools.demonstration.check import Check, check_cluster, check_files, print_checks
from tools.demonstration.work import Work, open_accounts

ROOT = Path(__file__).resolve().parents[2]
DATABASE = ROOT / "tools" / "data" / "timezones.sqlite"
SETTLE_S = 30.0
WATCH_S = 3.0
VICTIM = 1
LINE_MAX = 160  # the most characters that are shown of a line of another program


async def prepare(console: Console, cluster: LocalCluster, database: Path, run: str) -> None:
    """Wait for the nodes, load the database through them and open the accounts."""
    await cluster.wait_all_ready()
    console.print("[bold]1.[/] three nodes are up: " + ", ".join(f"{n.name} at {n.port}" for n in cluster.nodes))
    console.print(f"   metrics and status: http://127.0.0.1:{cluster.nodes[0].http_port}/metrics")
    began = time.monotonic()
    with console.status("loading") as status:
        async with open_client(cluster.url(options="/?timeout=30")) as client:

            def show(table: str, done: int, total: int) -> None:
                status.update(f"loading {table}: {done} of {total} rows")

            loaded = await load(client, database, run, show)
            try:
                await open_accounts(client, run)
            except BedrockishError as error:
                raise DemoError(f"the tables demo_account and demo_transfer could not be made: {error}") from error
    rows = ", ".join(f"{name} {count}" for name, count in loaded.rows.items())
    took = time.monotonic() - began
    console.print(f"[bold]2.[/] {database.name} is loaded through the nodes in {took:.1f} s: {rows} rows")
    for line in loaded.left_out:
        console.print(f"   left out: {line}")


async def fight(console: Console, cluster: LocalCluster, work: Work, seconds: float) -> list[Check]:
    victim, tally = cluster.nodes[VICTIM], work.tally
    writers = work.writers_per_node
    console.print(f"[bold]3.[/] {writers} writers at each node transfer money for {seconds:.0f} s; seed {work.seed}")
    began = trio.current_time()

    def say(text: str) -> None:
        console.print(f"{trio.current_time() - began:6.1f} s  {text}", markup=False)

    async def script() -> None:
        await trio.sleep(seconds * 0.4)
        victim.kill()
        say(f"node {victim.name} was killed (SIGKILL)")
        await trio.sleep(seconds * 0.2)
        victim.start()
        say(f"node {victim.name} is started again")
        await cluster.wait_ready(VICTIM)
        work.come_home(VICTIM)
        say(f"node {victim.name} answers again")

    async def watch() -> None:
        while True:
            await trio.sleep(WATCH_S)
            applied = "  ".join([f"{node.name} {await _vector(cluster, node)}" for node in cluster.nodes])
            met = f"{tally.retries + tally.conflicts} conflicts met, {tally.lost} answers asked again"
            say(f"{len(tally.promised):6} commits  {met}  |  {applied}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        with trio.move_on_after(seconds + SETTLE_S):
            async with trio.open_nursery() as acting:
                acting.start_soon(script)
                acting.start_soon(work.write)
                await trio.sleep(seconds)
                work.is_over = True
        nursery.cancel_scope.cancel()
    took = trio.current_time() - began
    known = len(tally.promised) + len(tally.refused)
    console.print(
        f"   {len(tally.promised)} transfers promised in {took:.0f} s, {len(tally.refused)} refused for want of money; "
        f"{tally.retries + tally.conflicts} conflicts met, {tally.lost} answers lost and asked again"
    )
    checks = [Check("every client learnt the outcome of all it asked", not tally.unknown, f"{known} known")]
    checks.append(Check("something was transferred", len(tally.promised) > 0, str(len(tally.promised))))
    wrong = await cluster.wait_level(SETTLE_S)
    found = wrong or await _vector(cluster, victim)
    checks.append(Check("all nodes applied the same commits", not wrong, found))
    if all(check.kept for check in checks):
        checks += await check_cluster(cluster)
    return checks


async def _vector(cluster: LocalCluster, node: LocalNode) -> str:
    """Return a node's vector in the notation of the protocol: one place for each leader."""
    status = await cluster.status(node) if node.is_running else None
    if status is None:
        return "starting" if node.is_running else "DOWN"
    return str([status["applied"].get(one.name, 0) for one in cluster.nodes])


def run_command(console: Console, promise: str, arguments: list[str]) -> Check:
    """Run a bedrockish command on the files and show its output."""
    command = [sys.executable, "-m", "bedrockish.cli.main", *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            console.print(f"   {line.rstrip()[:LINE_MAX]}", markup=False)
    return Check(promise, process.returncode == 0, f"exit status {process.returncode}")


def audit(console: Console, files: list[str], wanted: bool) -> list[Check]:
    console.print("[bold]5.[/] bedrockish journal verify")
    checks = [run_command(console, "the journals verify", ["journal", "verify", *files])]
    if not wanted:
        console.print("[bold]6.[/] the audit in Spark was not wanted")
    elif why := why_no_java():
        console.print(f"[bold]6.[/] [yellow]the audit in Spark is left out:[/] {why}")
    else:
        console.print("[bold]6.[/] bedrockish audit: the same files in Apache Spark")
        checks.append(run_command(console, "the audit in Spark finds nothing", ["audit", "--engine", "spark", *files]))
    return checks


def perform(console: Console, database: Path, directory: Path, seconds: float, seed: int, wanted: bool) -> bool:
    """Run the whole demo; return whether every promise was kept."""
    began = time.monotonic()
    run = f"demo-{uuid.uuid4().hex[:8]}"
    with local_cluster(directory, http=True) as cluster:
        work = Work(cluster, run, seed, writers_per_node=4)

        async def act() -> list[Check]:
            await prepare(console, cluster, database, run)
            return await fight(console, cluster, work, seconds)

        checks = trio.run(act)
    console.print("[bold]4.[/] the nodes are stopped; what is in their files?")
    checks += check_files(cluster, work.tally, database)
    files = [str(node.database) for node in cluster.nodes]
    checks += audit(console, files, wanted)
    print_checks(console, checks)
    broken = [check for check in checks if not check.kept]
    console.print(f"the files: {directory} (ordinary SQLite: open them with any tool), logs beside them")
    took = time.monotonic() - began
    if broken:
        console.print(f"[bold red]{len(broken)} of {len(checks)} promises BROKEN[/] in {took:.0f} s, seed {seed}")
    else:
        console.print(f"[bold green]all {len(checks)} promises kept[/] in {took:.0f} s, seed {seed}")
    return not broken


@click.command()
@click.argument("database", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATABASE)
@click.option("--seconds", type=click.FloatRange(3, 3600), default=30.0, show_default=True, help="How long to write.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="Where the files go.")
@click.option("--no-audit", is_flag=True, help="Leave out the audit in Spark.")
@click.option("--seed", type=int, help="Repeat the transfers that the writers of an earlier run drew.")
def main(database: Path, seconds: float, directory: Path | None, no_audit: bool, seed: int | None) -> None:
    """Replicate DATABASE over three nodes on this machine, write at all of them, kill one, and check everything.

    DATABASE is only read; by default it is the time zone database that comes with the project.
    """
    console = Console(highlight=False, soft_wrap=True)
    chosen = random.randrange(10**6) if seed is None else seed
    try:
        kept = perform(console, database, directory or ROOT / "demo-data", seconds, chosen, not no_audit)
    except BaseException as wrapped:
        error = unwrap(wrapped)
        if isinstance(error, KeyboardInterrupt):
            console.print("stopped; the nodes are down")
            sys.exit(130)
        if not isinstance(error, DemoError | BedrockishError):
            raise
        console.print(f"error: {error}", style="bold red", markup=False)
        sys.exit(2)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main(prog_name="tools/demo")
