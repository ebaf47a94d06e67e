"""Keeps what a test changes in kvsim's modules (registries, tables, rebound names, settings) from reaching the tests after it."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

UNIMPORTED = ("kvsim.__main__", "kvsim.web.lab_app")
"""Modules an example cannot add to: importing them starts a program."""


def import_all() -> None:
    """Import every module of kvsim, so that a registry first imported by an example has a state to go back to."""
    import kvsim

    for module in pkgutil.walk_packages(kvsim.__path__, "kvsim."):
        if module.name not in UNIMPORTED:
            importlib.import_module(module.name)


def contents(value: Any) -> Any:
    """Return the items of a dict (in order), list or set; None for anything else. Depth: tables in tables too."""
    if type(value) is dict:
        return [(key, item, contents(item)) for key, item in value.items()]
    if type(value) is list:
        return [(item, contents(item)) for item in value]
    return set(value) if type(value) is set else None


def put_back(value: Any, items: Any) -> None:
    """Give a dict, list or set the items it had; the object stays the same one (others may hold it)."""
    if type(value) is dict:
        value.clear()
        value.update((key, item) for key, item, _ in items)
        for _, item, inner in items:
            put_back(item, inner)
    elif type(value) is list:
        value[:] = [item for item, _ in items]
        for item, inner in items:
            put_back(item, inner)
    elif type(value) is set:
        value.clear()
        value.update(items)


def snapshot() -> list[tuple[Any, str, Any, Any]]:
    """Return every name of the loaded kvsim modules with its object and, of a dict, list or set, what is in it."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "kvsim" and module is not None]
    return [
        (module, name, value, contents(value))
        for module in modules
        for name, value in list(vars(module).items())
        if not name.startswith("__")
    ]


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Leave every module of kvsim that was loaded before as it was: same objects under the same names, with the same items."""
    before = snapshot()
    try:
        yield
    finally:
        for module, name, value, items in before:
            if vars(module).get(name) is not value:
                setattr(module, name, value)
            if items is not None:
                put_back(value, items)
