"""The radix tree: nodes, walking down by content, splitting. No memory, no policy.

Engine: 0.5.9 ``mem_cache/radix_cache.py``, ``hiradix_cache.py``; 0.5.23 ``unified_cache/unified_tree_core.py``.
A node holds a whole number of pages. Children are found by their first page (page 1: by the first token); a run that
fills a page stands for itself, so the index key is one integer for nearly all content.

*Time* is a counter. The engine reads its clock per node or per walk; nodes of one path are never leaves at the same
time, so only the order between walks, and within one walk "the lower part of a split, then the new leaf", can be
observed: one reading per walk and one more per new leaf decide the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.content import Run, Runs, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.kv.loading import Load


class Node:
    """A run of pages with up to two residences.

    ``device``, ``host``: where its KV is. ``own``: locks taken on this very node; ``locked``: own locks plus locked
    children, so a node is path-locked if and only if ``locked`` > 0 (the engine's lock_ref is the sum of ``own`` over
    the subtree). ``kids``: children on the device. ``queued``: bits of the leaf heaps it is in. ``load``: the load-back
    in flight that restored it (kept only where host duplicates are reclaimed). ``stale``: 0.5.9's stale host leaf
    (defects kept). ``parent`` is None for the root and for a node that has left the tree, and typed as if it never
    were: walks end at the root, which is always locked and on both tiers.
    """

    __slots__ = (
        "children", "created", "device", "edge", "hits", "host", "id", "key", "kids", "last", "load", "locked", "own",
        "parent", "priority", "queued", "size", "stale",
    )

    def __init__(self, number: int, key: Runs, size: int, parent: Node | None, edge: Any, now: int) -> None:
        self.id, self.key, self.size, self.edge = number, key, size, edge
        self.parent: Node = parent  # type: ignore[assignment]
        self.children: dict[Any, Node] = {}
        self.device = self.host = self.stale = False
        self.own = self.locked = self.kids = self.queued = self.hits = self.priority = 0
        self.last = self.created = now
        self.load: Load | None = None


NOWHERE = Node(0, (), 0, None, None, 0)


def piece(runs: Runs, at: int, offset: int, size: int) -> Runs:
    """Return ``size`` tokens of ``runs`` from ``offset`` inside run ``at``: cost per run of the result."""
    first, count = runs[at]
    if count - offset >= size:
        return ((first + offset, size),)
    out: list[Run] = [(first + offset, count - offset)]
    size -= count - offset
    while size:
        at += 1
        first, count = runs[at]
        if count > size:
            count = size
        out.append((first, count))
        size -= count
    return tuple(out)


def agreement(key: Runs, runs: Runs, at: int, offset: int) -> int:
    """Return how many leading tokens of ``key`` equal ``runs`` from ``offset`` inside run ``at`` on."""
    total = 0
    for first, count in key:
        if at == len(runs):
            return total
        other, there = runs[at]
        if other + offset != first:
            return total
        there -= offset
        if there != count:
            return total + (there if there < count else count)
        total += count
        at += 1
        offset = 0
    return total


def forward(runs: Runs, at: int, offset: int, size: int) -> tuple[int, int]:
    """Return the cursor ``size`` tokens further on."""
    offset += size
    while at < len(runs) and offset >= runs[at][1]:
        offset -= runs[at][1]
        at += 1
    return at, offset


class Cursor:
    """A content being looked up again and again, and how far the last walk got.

    ``runs``: canonical content; ``node_seen``: the deepest node found last (a root or a node gone: start over), whose
    path holds the first ``seen`` tokens; ``root_seen``: the root of that tree; ``at``, ``offset``: the place
    behind those tokens (run, tokens into it).
    """

    __slots__ = ("at", "namespace", "node_seen", "offset", "root_seen", "runs", "seen")

    def __init__(self, runs: Runs, namespace: str) -> None:
        self.runs, self.namespace = runs, namespace
        self.node_seen = self.root_seen = NOWHERE
        self.seen = self.at = self.offset = 0


class Tree:
    """The tree of one cache: root, clock, walk, split."""

    def __init__(self, page: int, *, split_keeps_creation_time: bool) -> None:
        self.page = page
        self.clock = 0
        self._numbers = 0
        self._split_keeps_creation_time = split_keeps_creation_time
        self.root = self._new_root()

    def _new_root(self) -> Node:
        root = Node(0, (), 0, None, None, 0)
        root.device = root.host = True
        root.own = root.locked = 1
        return root

    def _edge(self, runs: Runs, at: int, offset: int) -> Any:
        """Return the child index of the page that starts there."""
        first, count = runs[at]
        if count - offset >= self.page:
            return first + offset
        return piece(runs, at, offset, self.page)

    def _descend(self, cursor: Cursor, limit: int) -> Node | None:
        """Walk down the first ``limit`` tokens (whole pages); split where the content diverges.

        Leaves ``cursor`` behind the tokens that match and returns the lower part of a split node, or None. The clock has
        moved on; the caller touches the path, which it walks anyway. Starts at the node found last time if that is still
        in the tree: its content cannot have changed. Cost per new node and run.
        """
        page, runs = self.page, cursor.runs
        self.clock = now = self.clock + 2
        node = cursor.node_seen
        if node.parent is not None and cursor.seen <= limit and cursor.root_seen is self.root:
            at, offset, left = cursor.at, cursor.offset, limit - cursor.seen
        else:
            node, at, offset, left = self.root, 0, 0, limit
            cursor.root_seen = node
        lower = None
        while left:
            first, count = runs[at]
            if offset:
                first += offset
                count -= offset
            edge: Any = first if count >= page else piece(runs, at, offset, page)
            if left == limit and cursor.namespace:
                edge = (cursor.namespace, edge)
            child = node.children.get(edge)
            if child is None:
                break
            key, size = child.key, child.size
            single = len(key) == 1
            same = count if single else agreement(key, runs, at, offset)
            if same > left:
                same = left
            if same < size:
                size = same - same % page
                child.last = now
                lower, child = child, self._split(child, size, now)
            node = child
            left -= size
            if single and size < count:
                offset += size
            elif single:
                at, offset = at + 1, 0
            else:
                at, offset = forward(runs, at, offset, size)
            if lower is not None:
                break
        cursor.node_seen, cursor.seen, cursor.at, cursor.offset = node, limit - left, at, offset
        return lower

    def _split(self, node: Node, size: int, now: int) -> Node:
        """Cut ``node`` after ``size`` tokens; the new upper part is returned, ``node`` stays the lower part.

        The lower part keeps its identity, so locks and copies in flight that point to it cover both parts.
        """
        parent = node.parent
        self._numbers = number = self._numbers + 1
        upper = Node(number, piece(node.key, 0, 0, size), size, parent, node.edge, now)
        if self._split_keeps_creation_time:
            upper.created = node.created
        upper.device, upper.host, upper.hits, upper.priority = node.device, node.host, node.hits, node.priority
        upper.locked = 1 if node.locked else 0
        upper.kids = 1 if node.device else 0
        parent.children[node.edge] = upper
        at, offset = forward(node.key, 0, 0, size)
        node.key = piece(node.key, at, offset, node.size - size)
        node.size -= size
        node.edge = self._edge(node.key, 0, 0)
        node.parent = upper
        upper.children[node.edge] = node
        return upper

    def _new_leaf(self, key: Runs, size: int, parent: Node, namespace: str) -> Node:
        """Attach a node with the ``size`` tokens of ``key`` (whole pages); it resides nowhere yet."""
        edge: Any = key[0][0] if key[0][1] >= self.page else piece(key, 0, 0, self.page)
        if namespace and parent is self.root:
            edge = (namespace, edge)
        self._numbers = number = self._numbers + 1
        node = Node(number, key, size, parent, edge, self.clock + 1)
        parent.children[edge] = node
        return node

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root, parents first."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node is not self.root:
                yield node
            stack.extend(node.children.values())

    def dump(self) -> list[list[int]]:
        """Return the tree as the recordings do: pre-order, children by the tokens of their first page.

        Rows: parent row (0: the root, rows count from 1), tokens, first token, on device, on host, lock_ref, hits.
        """
        rows: list[list[int]] = []
        stack = [(self.root, 0)]
        while stack:
            node, above = stack.pop()
            number = 0
            if node is not self.root:
                rows.append([above, node.size, node.key[0][0], int(node.device), int(node.host), node.own, node.hits])
                number = len(rows)
            children = sorted(node.children.values(), key=self._place, reverse=True)
            stack.extend((child, number) for child in children)
        for row in reversed(rows):
            if row[0]:
                rows[row[0] - 1][5] += row[5]
        return rows

    def _place(self, node: Node) -> tuple[str, list[int]]:
        namespace = node.edge[0] if isinstance(node.edge, tuple) and isinstance(node.edge[0], str) else ""
        return namespace, tokens(piece(node.key, 0, 0, self.page))
