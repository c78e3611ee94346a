"""Pictures of a journal, drawn with matplotlib from the answers of ``questions``; only small results come here.

Each function takes a DataFrame that one of the questions returned, writes a PNG and returns its path.
"""

from datetime import datetime
from itertools import pairwise
from typing import Any

from matplotlib.colors import Normalize
from matplotlib.dates import AutoDateLocator, num2date
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy import ma
from pyspark.sql import DataFrame

COLORS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774", "#cb912f")
NOBODY = -1  # stands where there is nothing to colour
COMMITS_MAX = 120  # in a causal graph: more cannot be read


def _figure(width: float, height: float, title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Figure, path: str) -> str:
    figure.savefig(path, metadata={"Software": None})
    return path


def meetings_heat_map(meetings: DataFrame, path: str) -> str:
    """Draw who meets whom at the same keys, from ``questions.meetings``.

    Args:
        meetings: the answer.
        path: the PNG to write.
    """
    rows = meetings.collect()
    names = sorted({row["first"] for row in rows} | {row["then"] for row in rows})
    counts = [[0] * len(names) for _ in names]
    for row in rows:
        counts[names.index(row["first"])][names.index(row["then"])] = row["meetings"]
    figure, axes = _figure(2.4 + 0.8 * len(names), 1.8 + 0.7 * len(names), "Who meets whom at a key")
    # A leader that meets itself does not wait, so its count must not set the scale for leaders that meet.
    most = max((count for y, line in enumerate(counts) for x, count in enumerate(line) if x != y), default=0) or 1
    colours = Normalize(0, most)
    meeting = [[NOBODY if x == y else count for x, count in enumerate(line)] for y, line in enumerate(counts)]
    image = axes.imshow(ma.masked_equal(meeting, NOBODY), cmap="YlOrRd", norm=colours)
    for y, line in enumerate(counts):
        for x, count in enumerate(line):
            dark = x != y and count > 0.6 * most
            color = "white" if dark else "#787774" if x == y else "black"
            axes.text(x, y, count, ha="center", va="center", color=color)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("the next transaction there was of")
    axes.set_ylabel("a key was used by a transaction of")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for place in range(len(names)):
        axes.add_patch(Rectangle((place - 0.5, place - 0.5), 1, 1, facecolor="#f1f0ee", edgecolor="none", zorder=0))
    figure.colorbar(image, ax=axes, shrink=0.8, label="meetings of two leaders")
    return _save(figure, path)


def commits_timeline(commits: DataFrame, path: str) -> str:
    """Draw the commits of each leader over time, from ``questions.commits_over_time``.

    Args:
        commits: the answer.
        path: the PNG to write.
    """
    rows = commits.collect()
    begins = sorted({row["begin"] for row in rows})
    leaders = sorted({row["leader"] for row in rows})
    width = min((later - earlier for earlier, later in pairwise(begins)), default=None)
    figure, axes = _figure(8, 3, "Commits by the leader that began them")
    floor = dict.fromkeys(begins, 0)
    for color, leader in enumerate(leaders):
        counts = {row["begin"]: row["commits"] for row in rows if row["leader"] == leader}
        heights = [counts.get(begin, 0) for begin in begins]
        axes.bar(
            begins, heights, width=width or 0.00001, align="edge", bottom=list(floor.values()),
            color=COLORS[color % len(COLORS)], label=leader, edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        floor = {begin: floor[begin] + height for begin, height in zip(begins, heights, strict=True)}
    short = bool(begins) and (begins[-1] - begins[0]).total_seconds() < 3
    axes.xaxis.set_major_locator(AutoDateLocator(maxticks=8))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(
        lambda at, _: f"{num2date(at):%H:%M:%S.%f}"[: -5 if short else -7]  # type: ignore[no-untyped-call]
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"{begins[0]:%-d %B %Y}, UTC" if begins else "UTC")
    axes.set_ylabel("commits" if width is None else f"commits in {width.total_seconds():g} s")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _save(figure, path)


def causal_graph(causes: DataFrame, commits: DataFrame, path: str) -> str:
    """Draw which commit follows which in a window, from ``questions.causes``; a line for each timeline.

    Args:
        causes: the answer.
        commits: the commits of the same window, from the table ``commits`` of one node.
        path: the PNG to write.

    Raises:
        ValueError: the window has more commits than can be told apart in a picture.
    """
    wanted = ("leader", "tick", "clock", "committed_at", "adopted_from", "after")
    found = commits.select(*wanted).orderBy("clock", "leader").limit(COMMITS_MAX + 1).collect()
    if len(found) > COMMITS_MAX:
        raise ValueError(f"the window has more than {COMMITS_MAX} commits; choose a shorter one")
    leaders = sorted({leader for row in found for leader in (row["leader"], *(row["after"] or ()))})
    # In the order of clocks, one step each: times lie too close to each other to be told apart.
    places = {(row["leader"], row["tick"]): (x, -leaders.index(row["leader"])) for x, row in enumerate(found)}
    figure, axes = _figure(max(6.0, 0.42 * len(found) + 1), 0.9 * len(leaders) + 0.9, _window(found))
    for y, leader in enumerate(leaders):
        axes.axhline(-y, color="#e3e2e0", linewidth=1, zorder=0)
        axes.text(-0.9, -y, leader, ha="right", va="center", fontweight="bold")
    for row in causes.collect():
        start, end = (row["from_leader"], row["from_tick"]), (row["leader"], row["tick"])
        own = start[0] == end[0]
        (x, y), (end_x, _) = places[start], places[end]
        # Around the commits between them, if there are any; else it would seem to come from the last of these.
        bend = -0.35 if own and any(x < one < end_x and y == lane for one, lane in places.values()) else 0
        style = {"arrowstyle": "-|>", "shrinkA": 9, "shrinkB": 9, "mutation_scale": 9}
        style["connectionstyle"] = f"arc3,rad={bend}"
        style |= {"color": "#b8b6b2" if own else "#52514e", "linewidth": 1.0 if own else 1.2}
        axes.annotate("", places[end], places[start], arrowprops=style)
    for (leader, tick), (x, y) in places.items():
        adopted = next(row["adopted_from"] for row in found if (row["leader"], row["tick"]) == (leader, tick))
        color = COLORS[leaders.index(leader) % len(COLORS)]
        axes.scatter([x], [y], s=330, color="white" if adopted else color, edgecolor=color, linewidth=1.6, zorder=3)
        axes.text(x, y, tick, ha="center", va="center", fontsize=7.5, zorder=4, color=color if adopted else "white")
    note = (
        "in the order of clocks; dark: after a commit of another leader; light: after one of its own; hollow: adopted"
    )
    axes.text(-0.6, -len(leaders) + 0.45, note, fontsize=8, color="#787774", va="center")
    axes.set_xlim(-1.2, len(found))
    axes.set_ylim(-len(leaders) + 0.25, 0.5)
    axes.axis("off")
    return _save(figure, path)


def _window(found: list[Any]) -> str:
    if not found:
        return "No commits"
    first: datetime = found[0]["committed_at"]
    last: datetime = found[-1]["committed_at"]
    took = (last - first).total_seconds()
    return f"What follows what: {len(found)} commits in {1000 * took:.0f} ms from {first:%H:%M:%S.%f}"[:-3]
