"""Whether the optional libraries of a view are there: asked before a long simulation, not after it."""

from __future__ import annotations

from importlib.util import find_spec

from kvsim.errors import MissingExtra

#: view -> (what it is, libraries, extra)
NEEDS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "report": ("the HTML report", ("altair", "vl_convert", "jinja2"), "report"),
    "figures": ("drawing figures", ("altair", "vl_convert"), "report"),
    "timeline": ("the Perfetto timeline", ("perfetto",), "trace"),
    "metrics": ("the OpenMetrics file", ("prometheus_client",), "metrics"),
}


def require(**wanted: object) -> None:
    """Raise MissingExtra for the first wanted view (``report=path``, ...) whose libraries are not installed."""
    for view, value in wanted.items():
        if value and view in NEEDS:
            what, libraries, extra = NEEDS[view]
            if any(_absent(library) for library in libraries):
                raise MissingExtra(what, extra)


def _absent(library: str) -> bool:
    try:
        return find_spec(library) is None
    except ValueError:  # in sys.modules without a spec, or None there
        return True
