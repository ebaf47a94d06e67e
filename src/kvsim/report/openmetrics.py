"""OpenMetrics text of a run: the engine's own metric names over simulated time, so that an operator's boards show it.

Samples carry explicit timestamps (seconds of simulated time after ``origin_s``), so a file can be back-filled into a
Prometheus server (``promtool tsdb create-blocks-from openmetrics``). Counters and histograms are cumulative from the
start of the run; gauges hold the value at the sample's time, rates are over the interval since the sample before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError, MissingExtra
from kvsim.report.bench import family_of
from kvsim.report.frames import PS, span_ps
from kvsim.report.metric_facts import Facts
from kvsim.report.metric_names import METRICS, Metric
from kvsim.report.names import model_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.config.resolved import Capacity
    from kvsim.record.recording import Recording

#: A Prometheus server's usual scrape interval; shorter for runs in which that would give fewer than MIN_SAMPLES
#: samples.
SCRAPE_S, MIN_SAMPLES, MAX_SAMPLES = 15.0, 60, 2000


def write_metrics(
    recording: Recording,
    path: str | Path,
    capacity: Capacity | None = None,
    *,
    interval_s: float | None = None,
    origin_s: int = 0,
) -> Path:
    """Write the metrics of a run and return the path.

    ``capacity``: derived again from the recording's scenario if not given. ``interval_s``: time between samples
    (default: 15 s,
    less for short runs). ``origin_s``: epoch seconds of simulated time 0. Raises MissingExtra without prometheus-
    client.
    """
    target = Path(path)
    text = metrics_text(recording, capacity or capacity_of(recording), interval_s=interval_s, origin_s=origin_s)
    try:
        target.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def capacity_of(recording: Recording) -> Capacity:
    """Return the capacity of the scenario that made a recording."""
    from kvsim.config.load import load_data
    from kvsim.config.resolve import resolve

    return resolve(load_data(recording.resolved, [], "the recording's scenario")).capacity


def sample_times(recording: Recording, interval_s: float | None = None) -> list[int]:
    """Return the times of the samples in ps: every interval, and the end of the run."""
    span = span_ps(recording)
    if interval_s is None:
        interval_s = max(min(SCRAPE_S, span * PS / MIN_SAMPLES), span * PS / MAX_SAMPLES)
    step = max(int(interval_s / PS), 1)
    times = list(range(step, span, step))
    return [*times, span]


def metrics_text(recording: Recording, capacity: Capacity, *, interval_s: float | None = None, origin_s: int = 0) -> str:
    """Return the metrics of a run as OpenMetrics text."""
    try:
        from prometheus_client.openmetrics.exposition import generate_latest
    except ImportError:
        raise MissingExtra("the OpenMetrics file", "metrics") from None
    collector = _Collector(recording, capacity, sample_times(recording, interval_s), origin_s)
    text: bytes = generate_latest(collector, escaping="allow-utf-8")
    return text.decode()


class _Collector:
    """What prometheus-client's writer asks for its families."""

    def __init__(self, recording: Recording, capacity: Capacity, times: list[int], origin_s: int) -> None:
        self.family = family_of(recording)
        self.replicas = sorted({row[0] for row in recording.steps} | {row.replica for row in recording.requests}) or [0]
        self.facts = {replica: Facts(recording, capacity, replica, times) for replica in self.replicas}
        self.stamps = [origin_s + t * PS for t in times]
        self.model = model_name(recording.resolved)

    def collect(self) -> Iterator[Any]:
        """Yield every family of the engine, with all samples of all replicas."""
        for metric in METRICS[self.family]:
            yield self._family(metric)

    def _labels(self, replica: int) -> dict[str, str]:
        if self.family == "vllm":
            return {"model_name": self.model, "engine": str(replica)}
        return {
            "model_name": self.model,
            "engine_type": "unified",
            "tp_rank": "0",
            "pp_rank": "0",
            "instance": f"replica-{replica}",
        }

    def _family(self, metric: Metric) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
        names = list(self._labels(0)) + ([metric.label] if metric.label else [])
        family = kinds[metric.kind](metric.name, metric.help, labels=names)
        for replica in self.replicas:
            labels = list(self._labels(replica).values())
            if metric.kind == "histogram":
                self._histogram(family, labels, metric, self.facts[replica])
            else:
                for extra, values in self.facts[replica].series(metric.fact).items():
                    for stamp, value in zip(self.stamps, values, strict=True):
                        family.add_metric(labels + ([extra] if metric.label else []), value, timestamp=stamp)
        return family

    def _histogram(self, family: Any, labels: list[str], metric: Metric, facts: Facts) -> None:
        counts, totals = facts.histogram(metric.fact, metric.buckets)
        bounds = [*(_bound(b) for b in metric.buckets), "+Inf"]
        for stamp, row, total in zip(self.stamps, counts, totals, strict=True):
            family.add_metric(
                labels,
                [(bound, float(count)) for bound, count in zip(bounds, row, strict=True)],
                float(total),
                timestamp=stamp,
            )


def _bound(value: float) -> str:
    return repr(float(value))
