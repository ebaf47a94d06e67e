"""The nodes of the radix tree."""

from __future__ import annotations


class Node:
    """A node."""
