"""The engines' own metric names, labels and buckets, in one table with the version they were read from.

They change between releases; an operator's boards are the reason to keep them letter for letter.
SGLang: ``srt/metrics/collector.py`` of 0.5.9 and ``srt/observability/metrics_collector.py`` of later releases (same
names).
vLLM: ``vllm/v1/metrics/loggers.py`` of 0.24. Counters are named without ``_total``, which the text format appends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family: its name, kind (gauge, counter, histogram), help text, extra labels, histogram bounds, and the
    fact it shows.
    """

    name: str
    kind: str
    fact: str
    help: str
    label: str = ""
    buckets: tuple[float, ...] = ()


_TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E = (*_TTFT, 600, 1200, 1800, 2400)
_ITL = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.010,
    0.015,
    0.020,
    0.025,
    0.030,
    0.035,
    0.040,
    0.060,
    0.080,
    0.100,
    0.200,
    0.400,
    0.600,
    0.800,
    1,
    2,
    4,
    6,
    8,
)
#: Releases after 0.5.9 add finer bounds below 0.1 s.
_QUEUE = (
    0.0,
    0.1,
    0.2,
    0.5,
    1,
    2,
    3,
    4,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
    70,
    80,
    90,
    100,
    200,
    300,
    400,
    500,
    600,
    700,
    800,
    900,
    1000,
    1200,
    1400,
    1600,
    1800,
    2000,
    2500,
    3000,
)
_COPY = (
    0.001,
    0.002,
    0.003,
    0.004,
    0.005,
    0.006,
    0.007,
    0.008,
    0.009,
    0.01,
    0.02,
    0.03,
    0.04,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
)

SGLANG: tuple[Metric, ...] = (
    Metric("sglang:num_running_reqs", "gauge", "running", "The number of running requests."),
    Metric("sglang:num_queue_reqs", "gauge", "waiting", "The number of requests in the waiting queue."),
    Metric("sglang:num_used_tokens", "gauge", "device_locked", "The number of used tokens."),
    Metric("sglang:token_usage", "gauge", "device_share", "The token usage."),
    Metric("sglang:cache_hit_rate", "gauge", "hit_rate", "The prefix cache hit rate (since the sample before)."),
    Metric(
        "sglang:gen_throughput",
        "gauge",
        "output_per_s",
        "The generation throughput (token/s, since the sample before).",
    ),
    Metric("sglang:max_total_num_tokens", "gauge", "device_tokens", "Maximum total number of tokens in the KV cache pool."),
    Metric("sglang:hicache_host_used_tokens", "gauge", "host_used", "Number of tokens currently used in the host KV cache."),
    Metric("sglang:hicache_host_total_tokens", "gauge", "host_tokens", "Total capacity of the host KV cache in tokens."),
    Metric(
        "sglang:num_retracted_reqs",
        "gauge",
        "retracted_now",
        "The number of requests retracted (since the sample before).",
    ),
    Metric("sglang:num_retracted_requests", "counter", "retracted", "Number of requests retracted."),
    Metric("sglang:prompt_tokens", "counter", "prompt", "Number of prefill tokens processed."),
    Metric("sglang:generation_tokens", "counter", "output", "Number of generation tokens processed."),
    Metric(
        "sglang:cached_tokens",
        "counter",
        "cached_by_source",
        "Number of cached prompt tokens by source.",
        "cache_source",
    ),
    Metric("sglang:num_requests", "counter", "finished", "Number of requests processed."),
    Metric("sglang:num_aborted_requests", "counter", "aborted", "Number of requests aborted."),
    Metric("sglang:evicted_tokens", "counter", "evicted", "The number of tokens evicted from GPU to CPU."),
    Metric("sglang:load_back_tokens", "counter", "loaded", "The number of tokens loaded from CPU to GPU."),
    Metric(
        "sglang:load_back_duration_seconds",
        "histogram",
        "load_s",
        "Time taken to load memory from CPU to GPU in seconds.",
        "",
        _COPY,
    ),
    Metric(
        "sglang:time_to_first_token_seconds",
        "histogram",
        "ttft_s",
        "Histogram of time to first token in seconds.",
        "",
        _TTFT,
    ),
    Metric(
        "sglang:inter_token_latency_seconds",
        "histogram",
        "itl_s",
        "Histogram of inter-token latency in seconds.",
        "",
        _ITL,
    ),
    Metric(
        "sglang:e2e_request_latency_seconds",
        "histogram",
        "e2e_s",
        "Histogram of End-to-end request latency in seconds",
        "",
        _E2E,
    ),
    Metric("sglang:queue_time_seconds", "histogram", "queue_s", "Histogram of queueing time in seconds.", "", _QUEUE),
)

_V_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
_V_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_V_LATENCY = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)

VLLM: tuple[Metric, ...] = (
    Metric("vllm:num_requests_running", "gauge", "running", "Number of requests in model execution batches."),
    Metric("vllm:num_requests_waiting", "gauge", "waiting", "Number of requests waiting to be processed."),
    Metric("vllm:kv_cache_usage_perc", "gauge", "device_share", "KV-cache usage. 1 means 100 percent usage."),
    Metric("vllm:prefix_cache_queries", "counter", "prompt", "Prefix cache queries, in terms of number of queried tokens."),
    Metric("vllm:prefix_cache_hits", "counter", "device_hit", "Prefix cache hits, in terms of number of cached tokens."),
    Metric(
        "vllm:external_prefix_cache_queries",
        "counter",
        "device_miss",
        "External prefix cache queries from KV connector.",
    ),
    Metric("vllm:external_prefix_cache_hits", "counter", "host_hit", "External prefix cache hits from KV connector."),
    Metric("vllm:num_preemptions", "counter", "retracted", "Cumulative number of preemption from the engine."),
    Metric("vllm:prompt_tokens", "counter", "prompt", "Number of prefill tokens processed."),
    Metric("vllm:generation_tokens", "counter", "output", "Number of generation tokens processed."),
    Metric(
        "vllm:request_success",
        "counter",
        "finished_by_reason",
        "Count of successfully processed requests.",
        "finished_reason",
    ),
    Metric(
        "vllm:time_to_first_token_seconds",
        "histogram",
        "ttft_s",
        "Histogram of time to first token in seconds.",
        "",
        _V_TTFT,
    ),
    Metric(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "itl_s",
        "Histogram of inter-token latency in seconds.",
        "",
        _V_TPOT,
    ),
    Metric(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "tpot_s",
        "Histogram of time_per_output_token_seconds per request.",
        "",
        _V_TPOT,
    ),
    Metric(
        "vllm:e2e_request_latency_seconds",
        "histogram",
        "e2e_s",
        "Histogram of e2e request latency in seconds.",
        "",
        _V_LATENCY,
    ),
    Metric(
        "vllm:request_queue_time_seconds",
        "histogram",
        "queue_s",
        "Histogram of time spent in WAITING phase for request.",
        "",
        _V_LATENCY,
    ),
    Metric(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "prefill_s",
        "Histogram of time spent in PREFILL phase for request.",
        "",
        _V_LATENCY,
    ),
    Metric(
        "vllm:request_decode_time_seconds",
        "histogram",
        "decode_s",
        "Histogram of time spent in DECODE phase for request.",
        "",
        _V_LATENCY,
    ),
)

METRICS: dict[str, tuple[Metric, ...]] = {"sglang": SGLANG, "vllm": VLLM}
