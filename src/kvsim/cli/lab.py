"""`kvsim lab`: the interactive page, on this machine only."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from kvsim.cli.common import note

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def lab(
    *,
    host: str = "127.0.0.1",
    port: int = 2718,
    token: str | None = None,
    no_browser: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Open the interactive page: move a setting, see memory, latency and advice; step through a small world.

    The page can read files of the user who started it, so it listens on this machine only. Another host is refused
    unless a token is given, which every visitor then has to enter.

    Parameters
    ----------
    host
        Address to listen on; other than loopback only together with --token.
    port
        Port to listen on.
    token
        Password that visitors must give; at least 12 characters.
    no_browser
        Do not open a browser.
    """
    command = lab_command(host, port, token, no_browser)
    note(f"kvsim lab: http://{host}:{port} (stop with Ctrl-C)")
    return serve(command, token)


def serve(command: list[str], token: str | None) -> int:
    """Run the server until it ends, is interrupted or this process is told to stop; return its exit code."""
    import signal
    import subprocess

    environment = {**os.environ, "MARIMO_SKIP_UPDATE_CHECK": "1"}
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE if token else None, text=True)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    try:
        server.communicate(token)
    except KeyboardInterrupt:
        server.wait()
        return 0
    return 0 if server.returncode in (0, -signal.SIGTERM) else server.returncode


def lab_command(host: str, port: int, token: str | None, no_browser: bool) -> list[str]:
    """Return the command that serves the page; it reads the token from its standard input.

    Raises ConfigError for an open host without a token, MissingExtra without marimo.
    """
    import importlib.util
    import sys
    from pathlib import Path

    from kvsim.errors import ConfigError, MissingExtra

    if host not in LOOPBACK and not token:
        raise ConfigError(
            f"--host {host}: the page would be open to everybody who can reach this machine; allowed without --token: {', '.join(LOOPBACK)}"
        )
    if token is not None and len(token) < 12:
        raise ConfigError("--token: must have at least 12 characters")
    if not 0 < port < 65536:
        raise ConfigError(f"--port {port}: must be between 1 and 65535")
    if importlib.util.find_spec("marimo") is None:
        raise MissingExtra("the lab", "web")
    import kvsim.web

    page = Path(kvsim.web.__file__).with_name("lab_app.py")
    command = [sys.executable, "-m", "marimo", "run", str(page), "--host", host, "--port", str(port)]
    command += ["--token", "--token-password-file", "-"] if token else ["--no-token"]
    return command + (["--headless"] if no_browser else [])
