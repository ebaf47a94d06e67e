"""Parameters that several commands share, as the command-line parser reads them (imported only where it parses)."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

#: ``--set path=value``, repeatable, wherever a scenario is taken.
Set = Annotated[list[str] | None, Parameter(name="--set", help="Override one key: path=value (repeatable).", negative="")]
Hardware = Annotated[str | None, Parameter(help="Hardware profile (name or file) in place of a scenario.")]
Model = Annotated[str | None, Parameter(help="Model (bundled name or config.json) in place of a scenario.")]
Command = Annotated[str | None, Parameter(help="Launch command of the server, in place of an engine block.")]
Json = Annotated[bool, Parameter(name="--json", help="Print machine-readable JSON on stdout.", negative="")]
