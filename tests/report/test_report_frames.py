"""Down-sampling keeps the quantities it reduces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_world import fabricate

from kvsim.report import frames


def test_a_level_is_averaged_exactly_in_each_bin():
    # 0 until 10, 4 until 30, 1 afterwards; bins [0,20) and [20,40)
    mean, peak = frames.level([([10, 30], [4, -3])], np.array([0.0, 20.0, 40.0]))
    assert mean.tolist() == [2.0, 2.5]
    assert peak.tolist() == [4.0, 4.0]


def test_changes_at_one_instant_count_together_for_the_peak():
    _, peak = frames.level([([5, 5], [3, -3])], np.array([0.0, 10.0]))
    assert peak.tolist() == [0.0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 100)), min_size=1, max_size=30), st.integers(1, 12))
def test_binned_busy_time_adds_up_to_the_intervals(intervals, bins):
    pairs = [(start, start + length) for start, length in intervals]
    at = np.linspace(0, 1000, bins + 1)
    total = float((frames.busy(pairs, at) * np.diff(at)).sum())
    assert total == pytest.approx(sum(end - start for start, end in pairs))


def test_presence_integrates_to_the_time_spent_in_each_state():
    recording = fabricate(40)
    at = frames.edges(recording, 50)
    series = frames.presence(recording, at)
    served = [row for row in recording.requests if row.admitted_ps is not None]
    running = float((series["running"][0] * np.diff(at)).sum())
    assert running == pytest.approx(sum(row.end_ps - row.admitted_ps for row in served), rel=1e-9)
    waiting = float((series["waiting"][0] * np.diff(at)).sum())
    assert waiting == pytest.approx(sum(row.admitted_ps - row.arrival_ps for row in served), rel=1e-9)


def test_few_values_give_the_complete_distribution():
    assert frames.ecdf([3.0, 1.0, 2.0]) == [(1.0, 1 / 3), (2.0, 2 / 3), (3.0, 1.0)]


def test_many_values_keep_minimum_tail_and_maximum():
    points = frames.ecdf(range(1, 100_001), 240)
    assert len(points) <= 241
    assert points[-1] == (100_000.0, 1.0)
    assert any(share == pytest.approx(0.999, abs=2e-4) for _, share in points)
    assert all(value == pytest.approx(share * 100_000) for value, share in points)
