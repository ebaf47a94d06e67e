"""`python -m benchmarks.rss ARGS`: runs a module in this process, then prints its peak memory on stderr's last line."""

from __future__ import annotations

import resource
import runpy
import sys


def main() -> None:
    """Run ``sys.argv[1]`` as a module with the remaining arguments."""
    module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        code = left.code
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stderr.write(f"\n{peak:.1f} MiB\n")
    sys.exit(code if isinstance(code, int) else 0)


main()
