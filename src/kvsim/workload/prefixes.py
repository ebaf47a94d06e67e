"""A radix tree of content that was seen, without residences: reuse ceilings, a router's approximate view of a replica."""

from __future__ import annotations

from kvsim.content import Runs, common, cut

UNLIMITED = 1 << 62


class _Branch:
    __slots__ = ("children", "key", "size", "stamp")

    def __init__(self, key: Runs, size: int, stamp: int) -> None:
        self.key, self.size, self.stamp = key, size, stamp
        self.children: dict[int, _Branch] = {}


class PrefixTree:
    """What was seen: a radix tree of content without residences; beyond ``limit`` tokens its least recent leaves are dropped."""

    def __init__(self, limit: int = UNLIMITED) -> None:
        self.limit, self.size, self._stamp = limit, 0, 0
        self._roots: dict[str, _Branch] = {}

    def match(self, text: Runs, namespace: str) -> int:
        """Return the tokens of the longest known prefix."""
        node, matched = self._roots.get(namespace), 0
        while node is not None and text:
            child = node.children.get(text[0][0])
            if child is None:
                break
            same = common(child.key, text)
            matched += same
            if same < child.size:
                break
            text = cut(text, same, 1 << 62)
            node = child
        return matched

    def insert(self, text: Runs, namespace: str) -> None:
        """Note that ``text`` was sent."""
        self._stamp += 1
        node = self._roots.setdefault(namespace, _Branch((), 0, 0))
        while text:
            child = node.children.get(text[0][0])
            if child is None:
                size = sum(count for _, count in text)
                node.children[text[0][0]] = _Branch(text, size, self._stamp)
                self.size += size
                break
            child.stamp = self._stamp
            same = common(child.key, text)
            if same < child.size:
                child = self._split(node, child, same)
            text = cut(text, same, 1 << 62)
            node = child
        if self.size > self.limit:
            self._shrink()

    def _split(self, parent: _Branch, child: _Branch, at: int) -> _Branch:
        upper = _Branch(cut(child.key, 0, at), at, child.stamp)
        child.key, child.size = cut(child.key, at, child.size), child.size - at
        upper.children[child.key[0][0]] = child
        parent.children[upper.key[0][0]] = upper
        return upper

    def _shrink(self) -> None:
        """Drop least recently used leaves until a tenth of the limit is free."""
        leaves: list[tuple[int, _Branch, _Branch]] = []
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for child in node.children.values():
                (stack.append(child) if child.children else leaves.append((child.stamp, node, child)))
        leaves.sort(key=lambda leaf: leaf[0])
        for _, parent, leaf in leaves:
            if self.size <= 0.9 * self.limit:
                return
            del parent.children[leaf.key[0][0]]
            self.size -= leaf.size
