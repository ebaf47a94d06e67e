"""The statistics of one run as plain data: what summary.json holds and every table prints.

Keys are stable and carry their unit. A pure function of the recording.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvsim.measure.latency import PERCENTILES, PS, Latencies, inter_token, meets, tpot_ps, ttft_ps
from kvsim.measure.load import load_statistics
from kvsim.measure.steady import effective_share, mean_with_halfwidth, percentile, percentile_interval

if TYPE_CHECKING:
    from kvsim.record.recording import Recording

HIT_DEFINITION = (
    "hit rate = prompt tokens served from device or host at a request's first admission / its prompt tokens, over admitted requests; "
    "recomputation after a retraction is counted apart"
)


def summarise(recording: Recording) -> dict[str, Any]:
    """Return every statistic of a run. Means carry a 95 % half-width and a count; percentiles are linear, ITL nearest-rank.

    ``intervals`` of a distribution: 95 % order-statistic intervals of its percentiles, widened for correlation; None: too few values.
    """
    latencies = Latencies(recording)
    slo = slo_of(recording)
    span_s = recording.manifest.get("end_ps", 0) * PS
    good = [row for row in latencies.finished if slo is not None and meets(row, slo)]
    summary: dict[str, Any] = {
        "requests": _request_counts(recording),
        "span_s": span_s,
        "tokens": _token_counts(recording),
        "ttft_s": _distribution(latencies.ttft),
        "ttft_queue_s": _distribution(latencies.queue),
        "ttft_load_s": _distribution(latencies.load),
        "ttft_prefill_s": _distribution(latencies.prefill),
        "load_s": _distribution([row.load_ps * PS for row in latencies.started if row.load_ps]),
        "tpot_s": _distribution(latencies.tpot),
        "itl_s": inter_token(recording),
        "e2e_s": _distribution(latencies.e2e),
        "throughput": _throughput(recording, span_s),
        "hits": _hits(recording),
        "retractions": _retractions(recording),
        **load_statistics(recording),
    }
    summary["slo"] = None if slo is None else _slo_verdict(recording, slo, len(good), span_s)
    summary["definitions"] = {
        "hit_rate": HIT_DEFINITION,
        "ttft": "from arrival at the server to the first token",
        "percentiles": "linear; ITL nearest rank",
    }
    return summary


def slo_of(recording: Recording) -> SimpleNamespace | None:
    """Return the scenario's SLO bounds in ps (ttft_ps, tpot_ps, e2e_ps, attainment), or None if it has none."""
    slo = recording.resolved.get("slo")
    if not slo or all(slo.get(key) is None for key in ("ttft", "tpot", "e2e")):
        return None

    def ps(key: str) -> int | None:
        value = slo.get(key)
        return None if value is None else round(float(value) * 1e12)

    return SimpleNamespace(ttft_ps=ps("ttft"), tpot_ps=ps("tpot"), e2e_ps=ps("e2e"), attainment=float(slo.get("attainment") or 1.0))


def _distribution(values: list[float]) -> dict[str, Any] | None:
    """Return mean, half-width, count and percentiles of values in order of arrival; None without any."""
    if not values:
        return None
    estimate = mean_with_halfwidth(values)
    ordered = sorted(values)
    out: dict[str, Any] = {
        "mean": estimate.mean,
        "half_width": estimate.half_width,
        "count": estimate.count,
        "warmup_dropped": estimate.warmup_dropped,
        "method": estimate.method,
        "mean_all": sum(values) / len(values),
    }
    out.update({f"p{p}": percentile(ordered, p) for p in PERCENTILES})
    effective = effective_share(values, estimate.half_width)
    out["intervals"] = {f"p{p}": percentile_interval(ordered, p, effective=effective) for p in PERCENTILES}
    out["min"], out["max"] = ordered[0], ordered[-1]
    return out


def _request_counts(recording: Recording) -> dict[str, Any]:
    counts = {"finished": 0, "refused": 0, "aborted": 0, "unfinished": 0}
    reasons: dict[str, int] = {}
    for row in recording.requests:
        counts[row.status] += 1
        if row.status in ("refused", "aborted"):
            reasons[row.reason] = reasons.get(row.reason, 0) + 1
    top = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:5]
    return {"total": len(recording.requests), **counts, "unsent": recording.manifest.get("unsent", 0), "reasons": dict(top)}


def _token_counts(recording: Recording) -> dict[str, int]:
    return {
        "prompt": sum(row.prompt_tokens for row in recording.requests),
        "prompt_admitted": sum(row.prompt_tokens for row in recording.requests if row.admitted_ps is not None),
        "output": sum(row.output_tokens for row in recording.requests),
    }


def _throughput(recording: Recording, span_s: float) -> dict[str, float] | None:
    if span_s <= 0:
        return None
    finished = [row for row in recording.requests if row.status == "finished"]
    prompt = sum(row.prompt_tokens for row in recording.requests if row.first_token_ps is not None)
    output = sum(row.output_tokens for row in recording.requests)
    return {
        "requests_per_s": len(finished) / span_s,
        "input_tokens_per_s": prompt / span_s,
        "output_tokens_per_s": output / span_s,
        "total_tokens_per_s": (prompt + output) / span_s,
    }


def _hits(recording: Recording) -> dict[str, Any]:
    admitted = [row for row in recording.requests if row.admitted_ps is not None]
    prompt = sum(row.prompt_tokens for row in admitted)
    device = sum(row.device_hit for row in admitted)
    host = sum(row.host_hit for row in admitted)
    return {
        "device_tokens": device,
        "host_tokens": host,
        "miss_tokens": prompt - device - host,
        "prompt_tokens": prompt,
        "hit_rate": (device + host) / prompt if prompt else None,
        "device_rate": device / prompt if prompt else None,
        "host_rate": host / prompt if prompt else None,
        "recompute_hit_tokens": sum(row.recompute_hit for row in recording.requests),
    }


def _retractions(recording: Recording) -> dict[str, int]:
    hit = [row for row in recording.requests if row.retractions]
    return {
        "count": sum(row.retractions for row in hit),
        "requests": len(hit),
        "tokens_thrown_away": sum(row.retracted_tokens for row in hit),
    }


def _slo_verdict(recording: Recording, slo: Any, good: int, span_s: float) -> dict[str, Any]:
    total = len(recording.requests)
    share = good / total if total else None
    return {
        "ttft_s": None if slo.ttft_ps is None else slo.ttft_ps / 1e12,
        "tpot_s": None if slo.tpot_ps is None else slo.tpot_ps / 1e12,
        "e2e_s": None if slo.e2e_ps is None else slo.e2e_ps / 1e12,
        "attainment_wanted": slo.attainment,
        "attainment": share,
        "met": share is not None and share >= slo.attainment,
        "good_requests": good,
        "goodput_requests_per_s": good / span_s if span_s > 0 else None,
        "missed_by": {
            "ttft": sum(
                1 for row in recording.requests if row.status == "finished" and slo.ttft_ps is not None and ttft_ps(row) > slo.ttft_ps
            ),
            "tpot": sum(
                1
                for row in recording.requests
                if row.status == "finished" and slo.tpot_ps is not None and (tpot_ps(row) or 0) > slo.tpot_ps
            ),
            "not_finished": sum(1 for row in recording.requests if row.status != "finished"),
        },
    }
