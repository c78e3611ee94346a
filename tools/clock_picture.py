"""Draws docs/images/clock.svg: the clocks and times of three nodes while a transaction goes its way.

python -m tools.clock_picture
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "images" / "clock.svg"
WIDTH, LEFT, TOP, LANE = 940, 150, 64, 96
NODES = ("A", "B", "C")
WALLS = (0, 1_200, -700)  # ms that each wall clock is off
FIRST, LAST = 0, 700  # ms that the picture shows
INK, PALE, GREEN, BLUE, RED = "#1f2933", "#9aa5b1", "#2f855a", "#2b6cb0", "#c53030"


def x(moment: float) -> float:
    """Return where a moment is, in ms."""
    return LEFT + (moment - FIRST) * (WIDTH - LEFT - 30) / (LAST - FIRST)


def y(node: int) -> float:
    """Return where a node's line is."""
    return TOP + LANE * node + LANE / 2


def text(at: tuple[float, float], said: str, *, colour: str = INK, anchor: str = "middle", size: int = 13) -> str:
    """Return a text."""
    place = f'x="{at[0]:.1f}" y="{at[1]:.1f}"'
    return f'<text {place} fill="{colour}" font-size="{size}" text-anchor="{anchor}">{said}</text>'


def line(start: tuple[float, float], end: tuple[float, float], colour: str, *, more: str = "") -> str:
    """Return a line."""
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" stroke="{colour}" '
        f'stroke-width="1.5" {more}/>'
    )


def arrow(start: tuple[float, int], end: tuple[float, int], colour: str) -> str:
    """Return a message: from a moment at a node to a moment at another."""
    return line((x(start[0]), y(start[1])), (x(end[0]), y(end[1])), colour, more='marker-end="url(#tip)"')


def picture() -> str:
    """Return the picture."""
    height = TOP + LANE * len(NODES) + 84
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text((WIDTH / 2, 24), "One transaction, and how far time is closed behind it", size=16),
    ]
    for place, (node, off) in enumerate(zip(NODES, WALLS, strict=True)):
        parts += [
            line((x(FIRST), y(place)), (x(LAST), y(place)), PALE),
            text((14, y(place) - 2), f"node {node}", anchor="start", size=15),
            text((14, y(place) + 15), f"wall {off:+} ms" if off else "wall right", anchor="start", colour=PALE),
        ]
    begun, told, committed = 120, 140, 160
    for voter in (1, 2):
        parts += [arrow((begun, 0), (told, voter), BLUE), arrow((told + 3, voter), (committed, 0), BLUE)]
        parts.append(arrow((committed + 4, 0), (committed + 24, voter), GREEN))
    parts += [
        text((x(begun) - 4, y(0) - 26), "BEGIN X", colour=BLUE, anchor="end"),
        text((x(begun) - 4, y(0) - 10), "clock(X) is fixed", colour=BLUE, anchor="end"),
        text((x(committed) + 8, y(0) - 10), "commit: acknowledged", colour=GREEN, anchor="start"),
    ]
    steps = [
        (330, "closed", "nobody approves anything", "at or below clock(X)"),
        (450, "cut", "a majority has closed", "that far"),
        (570, "safe", "a majority has cut", "that far"),
    ]
    for moment, name, first, second in steps:
        parts.append(line((x(moment), TOP + 6), (x(moment), y(2) + 30), RED, more='stroke-dasharray="5 4"'))
        parts.append(text((x(moment), y(2) + 48), f"{name} ≥ clock(X)", colour=RED))
        parts += [text((x(moment), y(2) + 65), first, size=11), text((x(moment), y(2) + 79), second, size=11)]
    lag = y(0) + 22
    parts += [
        line((x(begun), lag), (x(330), lag), INK, more='marker-end="url(#tip)"'),
        text((x(232), lag - 5), "closing lag", size=12),
        text((x(640), y(0) - 10), "X is in the feed", colour=RED),
        text((x(640), y(0) + 8), "safe_clock() ≥ clock(X)", colour=RED),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the picture."""
    FILE.write_text(picture(), encoding="utf-8")
    print(FILE.relative_to(ROOT))


if __name__ == "__main__":
    main()
