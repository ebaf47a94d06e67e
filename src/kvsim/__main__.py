"""``python -m kvsim``."""

from kvsim.cli.app import main

main()
