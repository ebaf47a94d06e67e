"""kvsim."""
