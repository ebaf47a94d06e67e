"""``python -m benchmarks.beside PEER.jsonl``: kvsim on the trace a peer has just replayed, one line per engine with the ratio of CPU seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.__main__ import job

OURS = {
    "sglang": ("simulate", "engine.page_size=64", "engine.hicache.ratio=0", "engine.schedule_policy=lpm"),
    "vllm": ("vllm", "engine.block_size=64", "engine.num_gpu_blocks_override=10000", "engine.kv_offloading_size=0"),
    "vllm-host": ("vllm", "engine.block_size=64", "engine.num_gpu_blocks_override=10000", "engine.kv_offloading_size=3600"),
}


def main() -> None:
    """Print peer, kvsim and kvsim / peer in CPU seconds of the replay."""
    sys.stdout.write(f"{'engine':<12}{'peer, CPU s':>14}{'MiB':>7}{'kvsim, CPU s':>14}{'kvsim / peer':>14}\n")
    for line in Path(sys.argv[1]).read_text("utf-8").splitlines():
        peer = json.loads(line)
        ours = float(job(*OURS[peer["peer"]]).told["simulation_cpu_s"])
        sys.stdout.write(f"{peer['peer']:<12}{peer['cpu_s']:>14.2f}{peer['rss_mib']:>7.0f}{ours:>14.2f}{ours / peer['cpu_s']:>14.2f}\n")


if __name__ == "__main__":
    main()
