"""A graph of operations that came before others, and the search for a cycle."""

from collections import defaultdict


class Graph:
    """A directed graph that ought to have no cycle."""

    def __init__(self) -> None:
        self.next: dict[object, list[object]] = defaultdict(list)

    def edge(self, before: object, after: object) -> None:
        """Add the edge from an operation to a later one."""
        self.next[before].append(after)

    def find_cycle(self) -> list[object]:
        """Return the operations of a cycle, or an empty list."""
        color: dict[object, int] = {}
        for root in list(self.next):
            if root in color:
                continue
            path: list[object] = [root]
            work = [iter(self.next[root])]
            color[root] = 1
            while work:
                for step in work[-1]:
                    if color.get(step, 0) == 1:
                        return [*path[path.index(step) :], step]
                    if step not in color:
                        color[step] = 1
                        path.append(step)
                        work.append(iter(self.next.get(step, ())))
                        break
                else:
                    color[path.pop()] = 2
                    work.pop()
        return []
