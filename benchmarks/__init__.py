"""The speed table: `make bench`, or `python -m benchmarks`."""
