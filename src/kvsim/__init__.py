"""kvsim: what happens to my users if I change the memory?

A discrete-event simulator of KV-cache memory under load. The flow is one-way:
``load`` a scenario, ``resolve`` it (or ``explain`` it), ``simulate`` it, ``measure`` the recording.
Names are imported on first use, so that ``import kvsim`` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "load": "kvsim.api",
    "resolve": "kvsim.api",
    "explain": "kvsim.api",
    "simulate": "kvsim.api",
    "measure": "kvsim.api",
    "sweep": "kvsim.api",
    "options": "kvsim.api",
    "search": "kvsim.api",
    "curve": "kvsim.api",
    "compare": "kvsim.api",
    "verify": "kvsim.api",
    "Recording": "kvsim.record.recording",
    "KvsimError": "kvsim.errors",
    "ConfigError": "kvsim.errors",
    "TraceError": "kvsim.errors",
    "Infeasible": "kvsim.errors",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from kvsim.api import compare, curve, explain, load, measure, options, resolve, search, simulate, sweep, verify
    from kvsim.errors import ConfigError, Infeasible, KvsimError, TraceError
    from kvsim.record.recording import Recording


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kvsim' has no attribute '{name}'")


class _Package(ModuleType):
    """Keeps the verbs ``measure`` and ``verify`` callable although folders have the same names.

    Importing ``kvsim.measure.summary`` would bind the folder to the name of the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
