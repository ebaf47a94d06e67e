"""Runs in the peer's own environment: replays a Mooncake trace with Dynamo's offline replay and prints one JSON line per engine.

Same pool (640,000 tokens, 10,000 blocks of 64), host tier ten times as large with 50 GB/s each way, the peer's built-in step times sped up
by 4 so that the engine keeps up. The interface is that of the 1.6 wheels.
"""

from __future__ import annotations

import json
import resource
import sys
import time

BASE = {"block_size": 64, "num_gpu_blocks": 10_000, "speedup_ratio": 4.0}
HOST = {"num_host_blocks": 100_000, "d2h_bandwidth_gbps": 50.0, "h2d_bandwidth_gbps": 50.0}
ENGINES = {
    "sglang": {"backend": "sglang", **BASE},
    "vllm": {"backend": "vllm", **BASE},
    "vllm-host": {"backend": "vllm", **BASE, "kv_cache_bytes_per_token": 70_272, "native_host_offload": HOST},
}


def main() -> None:
    from dynamo._core import run_mocker_trace_replay

    for name, engine in ENGINES.items():
        start = time.process_time()
        run_mocker_trace_replay([sys.argv[1]], extra_engine_args={"engine": engine}, trace_block_size=512)
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sys.stdout.write(json.dumps({"peer": name, "cpu_s": time.process_time() - start, "rss_mib": rss}) + "\n")


if __name__ == "__main__":
    main()
