"""The node's metrics in the text format of Prometheus, read from its status and its counts at each request."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bedrockish.common.histogram import BOUNDS_S, Histogram
from bedrockish.node.admin.troubles import KINDS, not_ready
from bedrockish.node.runtime import Runtime

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REJECTED = "rejected_"
COUNTERS = {  # for each count of the node: name and description of its metric
    "commits": ("commits", "Commits applied, of all leaders."),
    "commits_led": ("commits_led", "Commits that this node led."),
    "executions": ("executions", "Runs of clients' requests, repeated ones included."),
    "repeated_commands": ("repeated_commands", "Requests answered from the journal: they had happened already."),
    "direct_reads": ("direct_reads", "Short reads answered from the last durable batch, without the core."),
    "reads_beside": ("reads_beside", "Reads answered while the writer was busy with long work."),
    "given_up": ("given_up", "Attempts of this node that were rejected and rolled back."),
    "batches": ("batches", "Batches made durable, each with one sync."),
    "malformed": ("malformed_messages", "Messages of peers that could not be read."),
    "internal_errors": ("internal_errors", "Requests and tasks at which the node's program failed."),
    "disk_errors": ("disk_errors", "Requests and tasks at which the disk could not read or write."),
    "limit_errors": ("limit_errors", "Requests and tasks that met a limit of the machine, such as that of threads."),
    "restarts": ("restarts", "How often the node began again from its file after its program had failed."),
}
CLOCKS = {  # fields of the node's status, in milliseconds there
    "closing_lag": "How far behind its clock the node closes time.",
    "clock_ahead": "How far the cluster's clock is ahead of this machine's wall clock.",
}
GAUGES = {  # fields of the node's status
    "in_flight": ("in_flight", "Transactions of this node that are being decided."),
    "requests": ("requests_in_flight", "Requests that are under way at this node."),
    "wal_frames": ("wal_frames", "Frames in the write-ahead log."),
    "schema_version": ("schema_version", "How often the schema was changed."),
    "quorum": ("quorum", "Approvals that a commit needs."),
}


def metrics_text(node: Runtime) -> bytes:
    """Return all metrics of a node."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Numbers(node))
    return generate_latest(registry)


class _Numbers(Collector):
    def __init__(self, node: Runtime) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        status = self._node.status()
        counts: Mapping[str, int] = status["counts"]
        for name, (ours, text) in COUNTERS.items():
            yield CounterMetricFamily(f"bedrockish_{ours}", text, value=counts.get(name, 0))
        for name, (ours, text) in GAUGES.items():
            yield GaugeMetricFamily(f"bedrockish_{ours}", text, value=status[name])
        yield from self._outcomes(status, counts)
        yield from self._cluster(status)
        yield _histogram("request", "From a request's arrival to its answer.", self._node.reports.latency)
        yield _histogram("sync", "How long the disk took for one sync.", self._node.gate.fsync.took)

    def _outcomes(self, status: Mapping[str, Any], counts: Mapping[str, int]) -> Iterator[Metric]:
        rejects = {name.removeprefix(REJECTED): count for name, count in counts.items() if name.startswith(REJECTED)}
        conflicts = rejects.get("for", 0)
        yield _each(CounterMetricFamily, "rejects", "Rejects heard, by reason.", "reason", rejects)
        yield CounterMetricFamily("bedrockish_conflicts", "Rejects because of another transaction.", value=conflicts)
        objects = CounterMetricFamily(
            "bedrockish_lost_to_conflicts",
            "Runs lost to another transaction, by table or index, and whether at a key, in a range or in all of it.",
            labels=["object", "exact"],
        )
        for one in status["conflicts"]:
            objects.add_metric([one["object"], one["exact"]], one["times"])
        yield objects
        yield _each(CounterMetricFamily, "recoveries", "Recoveries by this node.", "event", status["recoveries"])
        doubt = len(self._node.core.state.votes.pending.transactions)
        yield GaugeMetricFamily("bedrockish_in_doubt", "Transactions whose outcome is not known here.", value=doubt)

    def _cluster(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "bedrockish_info", "The node, its cluster and its release.", labels=["node", "cluster", "version"]
        )
        info.add_metric([status["node"], status["cluster"], status["version"]], 1)
        yield info
        yield GaugeMetricFamily("bedrockish_ready", "1 if /readyz says yes.", value=not not_ready(status))
        wrong = {one["code"] for one in status["troubles"]}
        troubles = {code: code in wrong for code in KINDS}
        yield _each(GaugeMetricFamily, "trouble", "1 while this trouble lasts, see docs/troubles.md.", "code", troubles)
        if status["disk"] is not None:
            free = status["disk"]["free_bytes"]
            yield GaugeMetricFamily("bedrockish_disk_free_bytes", "Room on the disk of the database.", value=free)
        ends = status["certificates"]
        yield _each(GaugeMetricFamily, "certificate_end_seconds", "When it ends, Unix time.", "file", ends)
        yield GaugeMetricFamily("bedrockish_uptime_seconds", "Since the start.", value=status["uptime_ms"] / 1000)
        if status["safe_lag_ms"] is not None:
            lag = status["safe_lag_ms"] / 1000
            yield GaugeMetricFamily("bedrockish_safe_lag_seconds", "How far safe time is behind the clock.", value=lag)
        for name, said in CLOCKS.items():
            yield GaugeMetricFamily(f"bedrockish_{name}_seconds", said, value=status[f"{name}_ms"] / 1000)
        peers = {name: peer for name, peer in status["nodes"].items() if name != status["node"]}
        up = {name: peer["up"] for name, peer in peers.items()}
        silent = {name: peer["silent_ms"] / 1000 for name, peer in peers.items()}
        yield _each(GaugeMetricFamily, "peer_up", "1 if the link to a peer is up.", "peer", up)
        yield _each(GaugeMetricFamily, "peer_silent_seconds", "Since a peer was last heard.", "peer", silent)
        yield GaugeMetricFamily("bedrockish_peers", "Other members.", value=len(peers))
        yield GaugeMetricFamily("bedrockish_peers_up", "Other members with a link.", value=sum(up.values()))
        yield _each(CounterMetricFamily, "applied_ticks", "Applied of each timeline.", "leader", status["applied"])


def _each(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, label: str, values: Mapping[str, float]
) -> Metric:
    metric = kind(f"bedrockish_{name}", text, labels=[label])
    for one, value in sorted(values.items()):
        metric.add_metric([one], value)
    return metric


def _histogram(name: str, text: str, values: Histogram) -> Metric:
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    buckets = list(zip(bounds, accumulate(values.counts), strict=True))
    return HistogramMetricFamily(f"bedrockish_{name}_seconds", text, buckets=buckets, sum_value=values.total)
