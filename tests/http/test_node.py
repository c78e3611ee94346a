"""A node's own reports over HTTP: probes, status, metrics and the token, and the rights that each call needs."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from bedrockish.http.guard import is_near
from tests.cluster.story import ready, until
from tests.http.conftest import Asker
from tools.cluster import ROOT, LocalCluster, clean_environment, free_ports, local_cluster

cluster_test = pytest.mark.cluster


def asker(cluster: LocalCluster, index: int = 0) -> Asker:
    port = cluster.nodes[index].http_port
    assert port is not None
    return Asker(port, cluster)


@cluster_test
def test_http_serves_status_members_probes_and_the_list_of_paths(node: Asker) -> None:
    status = node("/status").json
    assert status["node"] == "A"
    assert node("/nodes").json.keys() == status["nodes"].keys() == {"A"}
    assert node("/livez").json == {"alive": True}
    assert node("/readyz").json == {"ready": True, "reasons": [], "troubles": []}
    assert node("/", method="HEAD").status == 200
    assert "POST /db/execute" in node("/").json["paths"]
    assert "default-src 'self'" in node("/").headers["content-security-policy"]


@cluster_test
def test_grafana_dashboard_queries_existing_metrics(node: Asker) -> None:
    """Compare each metric name and label in deploy/grafana.json with the metrics of a node."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(node("/metrics").body.decode())
    labels: dict[str, set[str]] = {}
    for family in families:
        labels.setdefault(family.name, set()).update({"job", "instance", "le"})
        for sample in family.samples:
            labels.setdefault(sample.name, {"job", "instance"}).update(sample.labels)
    seldom = {"bedrockish_lost_to_conflicts_total": {"object", "exact"}, "bedrockish_rejects_total": {"reason"}}
    seldom |= {"bedrockish_certificate_end_seconds": {"file"}}
    for name, some in seldom.items():  # absent until the first event
        labels.setdefault(name, {"job", "instance"}).update(some)
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    asked = [(target["expr"], target["legendFormat"]) for panel in dashboard["panels"] for target in panel["targets"]]
    for query, legend in asked:
        names = re.findall(r"bedrockish_\w+", query)
        assert names
        assert set(names) <= set(labels), query
        used = set(re.findall(r"{{(\w+)}}", legend)) | {
            label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")
        }
        assert used <= labels[names[0]] | {"instance", "le"}, query


@cluster_test
def test_metrics_are_valid_for_prometheus_and_change_with_writes(node: Asker) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def read() -> dict[str, float]:
        families = text_string_to_metric_families(node("/metrics").body.decode())
        samples = [sample for family in families for sample in family.samples]
        assert all(family.documentation for family in families)
        return {sample.name + "".join(sorted(sample.labels.values())): sample.value for sample in samples}

    before = read()
    assert node.sql("CREATE TABLE IF NOT EXISTS metered(a)", "INSERT INTO metered VALUES (1)").status == 200
    after = read()
    assert after["bedrockish_commits_total"] - before["bedrockish_commits_total"] == 2
    assert after["bedrockish_request_seconds_count"] - before["bedrockish_request_seconds_count"] == 2
    assert after["bedrockish_sync_seconds_count"] > before["bedrockish_sync_seconds_count"]
    assert after["bedrockish_request_seconds_bucket+Inf"] == after["bedrockish_request_seconds_count"]
    for name in ("in_flight", "in_doubt", "wal_frames", "safe_lag_seconds", "peers_up", "ready", "conflicts_total"):
        assert f"bedrockish_{name}" in after


@cluster_test
def test_readiness_ends_with_the_quorum(tmp_path: Path) -> None:
    """A node stays ready while one of three is dead; without a quorum the status is 503."""
    with local_cluster(tmp_path / "three", http=True) as cluster:
        trio.run(ready, cluster)
        ask = asker(cluster)
        assert ask.sql("CREATE TABLE t(a)", timeout="20").status == 200
        cluster.nodes[2].kill()
        trio.run(until, "C is missed", _says(lambda: ask("/nodes").json["C"]["mode"] == "away"))
        assert ask("/readyz").status == 200
        assert ask.sql("INSERT INTO t VALUES (1)", timeout="20").status == 200
        cluster.nodes[1].kill()
        trio.run(until, "no quorum", _says(lambda: ask("/readyz").status == 503))
        assert "2 are needed" in ask("/readyz").json["reasons"][0]
        assert ask("/livez").status == 200
        lost = ask.sql("INSERT INTO t VALUES (2)", timeout="1", command="lonely")
        assert lost.status in (503, 504), lost.body
        if lost.status == 504:
            assert lost.json["details"]["command"] == "lonely"
        assert ask.sql("SELECT a FROM t", to="query", read="stale").json["results"][0]["rows"] == [[1]]


def _says(holds: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await trio.to_thread.run_sync(holds)

    return check


@cluster_test
def test_every_path_but_livez_requires_a_token(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "secret", ("A",))
    cluster.add_http()
    cluster.write_files()
    with_token = "http_token = 'se/cret'\n" + cluster.nodes[0].config.read_text()
    cluster.nodes[0].config.write_text(with_token)
    cluster.nodes[0].start()
    try:
        trio.run(ready, cluster)
        ask = asker(cluster)
        assert ask("/livez").status == 200
        assert ask("/").status == 200  # the list of paths has no data in it
        for path in ("/status", "/nodes", "/readyz", "/metrics", "/nothing"):
            refused = ask(path)
            assert (refused.status, refused.json["code"]) == (401, "authentication"), path
            assert refused.headers["www-authenticate"] == "Bearer"
            assert ask(path, Authorization="Bearer wrong").status == 401
            assert ask(path, Authorization="Bearer se/cret").status == (404 if path == "/nothing" else 200)
        assert ask("/db/execute", ["SELECT 1"]).status == 401
        assert ask("/db/execute", ["SELECT 1"], Authorization="bearer se/cret").status == 200
        assert ask("/status", Host="db.example.org", Authorization="Bearer se/cret").status == 200
        assert "se/cret" not in cluster.nodes[0].log.read_text()
    finally:
        cluster.stop()


@cluster_test
def test_a_foreign_name_is_refused_without_a_token(node: Asker) -> None:
    assert node("/status", Host="evil.example.org").status == 400
    assert node("/status", Host="localhost:1").status == 200


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("10.0.0.7", True),
        ("localhost", True),
        ("node-a:4001", True),
        ("db.internal", True),
        ("known.example", True),
        ("evil.example:80", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_hosts_without_dots_and_ip_addresses_are_allowed(host: str, near: bool) -> None:
    assert is_near(host, frozenset({"known.example"})) is near


@cluster_test
def test_graceful_stop_succeeds_with_an_open_http_connection(tmp_path: Path) -> None:
    import http.client

    with local_cluster(tmp_path / "one", ("A",), http=True) as cluster:
        trio.run(ready, cluster)
        this = cluster.nodes[0]
        assert this.http_port is not None
        link = http.client.HTTPConnection("127.0.0.1", this.http_port, timeout=60)
        link.request("GET", "/livez")
        link.getresponse().read()
        assert this.process is not None
        this.process.send_signal(signal.SIGTERM)
        assert this.process.wait(60) == 0
        link.close()


def test_a_port_in_use_and_a_missing_package_end_the_node_with_one_line(tmp_path: Path) -> None:
    import socket

    def serve(port: int, *before: str, how: tuple[str, ...] = ("serve",)) -> subprocess.CompletedProcess[str]:
        config = tmp_path / "A.toml"
        listen = free_ports(1)[0]
        config.write_text(f'node="A"\ndatabase="A.sqlite"\nlisten="127.0.0.1:{listen}"\nhttp="127.0.0.1:{port}"\n')
        program = "; ".join([*before, "from bedrockish.cli.main import main", "main()"])
        command = [sys.executable, "-c", program, *how, "--config", str(config), "--set", "level=error"]
        environment = clean_environment()
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = serve(port)
    assert found.returncode == 2, found.stderr
    assert (
        found.stderr.strip()
        == f"error: http: 127.0.0.1:{port} cannot be used: Address already in use; choose another address"
    )
    (tmp_path / "A.sqlite").unlink()
    found = serve(0, "import sys", "sys.modules['httptools'] = None")
    assert found.returncode == 2, found.stderr
    assert "pip install 'bedrockish[http]'" in found.stderr
    assert found.stderr.count("\n") == 1
    found = serve(0, "import sys", "sys.modules['httptools'] = None", how=("join", "bedrockish://127.0.0.1:1"))
    assert "pip install 'bedrockish[http]'" in found.stderr, "it ends before it asks the cluster"
    assert not (tmp_path / "A.sqlite").exists(), "it ends before it makes its file"


def test_http_is_off_unless_it_is_configured() -> None:
    """Without the setting, a node does not even import the package."""
    program = (
        "import sys, bedrockish.daemon; "
        "print(*(n for n in sys.modules if n.startswith(('bedrockish.http', 'httptools'))))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


@cluster_test
def test_request_with_two_lengths_is_refused_and_nothing_after_it_is_read(node: Asker) -> None:
    """A proxy in front may use the other length, and would take the rest for a request of its own."""
    body = b'["SELECT 1"]'
    hidden = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    head = b"POST /db/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    chunked = b"c\r\n" + body + b"\r\n0\r\n\r\n"
    for lengths, sent, statuses in (
        (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", chunked, [b"400"]),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 22\r\n", chunked, [b"400"]),
        (b"Transfer-Encoding: chunked\r\n", chunked, [b"200", b"200"]),
        (b"Content-Length: 12\r\n", body, [b"200", b"200"]),
    ):
        with socket.create_connection(("127.0.0.1", node.port), 10) as link:
            link.settimeout(60)
            link.sendall(head + lengths + b"\r\n" + sent + hidden)
            found = b""
            with suppress(TimeoutError):
                while piece := link.recv(65536):
                    found += piece
                    if found.count(b"HTTP/1.1 ") == len(statuses):
                        link.settimeout(3)  # no more may come
        assert re.findall(rb"HTTP/1.1 (\d+)", found) == statuses, lengths
