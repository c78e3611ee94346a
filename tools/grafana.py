"""Grafana's dashboard, deploy/grafana.json: what is wrong first, then what clients notice, then why."""

import json
from typing import Any, NamedTuple

WHERE = '{job=~"$job", instance=~"$instance"}'
RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """A panel.

    Attributes:
        title: above it.
        kind: stat, timeseries or table, of Grafana's.
        unit: Grafana's name of it.
        queries: (PromQL, what a line is called).
    """

    title: str
    kind: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _rate(metric: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}{WHERE}{RATE}))"


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, sum by (le, instance) (rate({metric}_bucket{WHERE}{RATE})))"


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple((_quantile(share, metric), f"p{share * 100:.0f} {{{{instance}}}}") for share in (0.5, 0.99))


PANELS = (
    Panel("What is wrong", "table", "none", ((f"bedrockish_trouble{WHERE} == 1", "{{instance}} {{code}}"),)),
    Panel("Ready", "stat", "bool_yes_no", ((f"bedrockish_ready{WHERE}", "{{instance}}"),)),
    Panel("Links that are down", "stat", "none", ((f"sum(bedrockish_peer_up{WHERE} == bool 0)", "links"),)),
    Panel(
        "Commits, by the node that led them",
        "timeseries",
        "ops",
        ((_rate("bedrockish_commits_led_total"), "{{instance}}"),),
    ),
    Panel("Requests, from arrival to answer", "timeseries", "s", _quantiles("bedrockish_request_seconds")),
    Panel(
        "Runs lost to conflicts, by table or index",
        "timeseries",
        "ops",
        ((_rate("bedrockish_lost_to_conflicts_total", "object, exact"), "{{object}} ({{exact}})"),),
    ),
    Panel("Rejects, by reason", "timeseries", "ops", ((_rate("bedrockish_rejects_total", "reason"), "{{reason}}"),)),
    Panel("One sync of the disk", "timeseries", "s", _quantiles("bedrockish_sync_seconds")),
    Panel("Safe time behind the clock", "timeseries", "s", ((f"bedrockish_safe_lag_seconds{WHERE}", "{{instance}}"),)),
    Panel("In doubt", "timeseries", "none", ((f"bedrockish_in_doubt{WHERE}", "{{instance}}"),)),
    Panel("Being decided", "timeseries", "none", ((f"bedrockish_in_flight{WHERE}", "{{instance}}"),)),
    Panel("Frames of the write-ahead log", "timeseries", "none", ((f"bedrockish_wal_frames{WHERE}", "{{instance}}"),)),
    Panel("Room on the disk", "timeseries", "bytes", ((f"bedrockish_disk_free_bytes{WHERE}", "{{instance}}"),)),
    Panel(
        "Clock ahead of the wall",
        "timeseries",
        "s",
        ((f"bedrockish_clock_ahead_seconds{WHERE}", "{{instance}}"),),
    ),
    Panel(
        "Until a certificate ends",
        "timeseries",
        "s",
        ((f"bedrockish_certificate_end_seconds{WHERE} - time()", "{{instance}} {{file}}"),),
    ),
    Panel(
        "Faults of the program",
        "timeseries",
        "ops",
        (
            (_rate("bedrockish_internal_errors_total"), "at a request, {{instance}}"),
            (_rate("bedrockish_malformed_messages_total"), "messages of peers, {{instance}}"),
        ),
    ),
)


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    instant = panel.kind != "timeseries"
    made: dict[str, Any] = {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": source,
        "gridPos": {"h": 8, "w": 8, "x": 8 * (number % 3), "y": 8 * (number // 3)},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": None if "time()" in panel.queries[0][0] else 0}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": source,
                "expr": query,
                "legendFormat": legend,
                "instant": instant,
                "range": not instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }
    if made["fieldConfig"]["defaults"]["min"] is None:
        del made["fieldConfig"]["defaults"]["min"]
    return made


def dashboard_page() -> str:
    """Return deploy/grafana.json."""
    variables: list[dict[str, Any]] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _variable("job", "job", "label_values(bedrockish_info, job)"),
        _variable("instance", "node", 'label_values(bedrockish_info{job=~"$job"}, instance)'),
    ]
    made = {
        "uid": "bedrockish",
        "title": "bedrockish",
        "tags": ["bedrockish"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(made, indent=2) + "\n"
