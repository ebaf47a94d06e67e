"""Figures as data: fields, scales, titles with units, and the numbers in them."""

from __future__ import annotations

import json

import pytest
import report_world

from kvsim.record.recording import Recording
from kvsim.report.figures import run_figures
from kvsim.report.style import BLUE, GREY, ORANGE


def specs_of(recording, summary, capacity):
    return {figure.key: figure for figure in run_figures(recording, summary, capacity)}


@pytest.fixture(scope="module")
def figures(fabricated, fabricated_summary, fabricated_resolved):
    return specs_of(fabricated, fabricated_summary, fabricated_resolved.capacity)


def values_of(figure):
    spec = figure.spec()
    found = []
    for layer in [spec, *spec.get("layer", [])]:
        data = layer.get("data") or {}
        found += data.get("values") or []
        if "name" in data:
            found += spec["datasets"][data["name"]]
    return found


def encodings(figure):
    spec = figure.spec()
    return [layer.get("encoding", {}) for layer in spec.get("layer", [spec])]


def test_figures_come_in_reading_order(figures):
    assert list(figures) == [
        "card",
        "host",
        "latency",
        "ttft-split",
        "ttft-time",
        "occupancy",
        "queue",
        "hits-time",
        "hits-turn",
        "links",
        "gpu",
    ]


def test_every_quantitative_axis_names_its_unit_or_count(figures):
    words = ("GiB", "(s", "(%)", "tokens", "requests", "(% of time)", "time")
    for figure in figures.values():
        for encoding in encodings(figure):
            for channel in ("x", "y"):
                axis = encoding.get(channel, {})
                if axis.get("type") == "quantitative" and "title" in axis:
                    assert any(word in axis["title"] for word in words), (figure.key, axis["title"])


def test_every_figure_has_a_table_with_rows(figures):
    for figure in figures.values():
        assert figure.table.rows, figure.key
        assert all(len(row) == len(figure.table.headers) for row in figure.table.rows), figure.key


def test_specs_hold_no_address_and_are_plain_json(figures):
    for figure in figures.values():
        text = json.dumps(figure.spec(), allow_nan=False)
        assert "http" not in text, figure.key


def test_a_tier_has_one_colour_in_every_figure(figures):
    for key in ("occupancy", "hits-time", "hits-turn"):
        scale = encodings(figures[key])[0]["color"]["scale"]
        colours = dict(zip(scale["domain"], scale["range"], strict=True))
        assert colours["device"] == BLUE
        assert colours["host"] == ORANGE
        assert colours.get("miss", GREY) == GREY


def test_lines_differ_in_dashes_as_well_as_in_colour(figures):
    for key in ("latency", "occupancy", "queue", "links"):
        encoding = encodings(figures[key])[0]
        assert encoding["strokeDash"]["field"] == encoding["color"]["field"]
        dashes = encoding["strokeDash"]["scale"]["range"]
        assert len({tuple(d) for d in dashes}) == len(dashes)


def test_card_parts_add_up_to_the_card(figures, fabricated_resolved):
    total = sum(row["gib"] for row in values_of(figures["card"]))
    assert total == pytest.approx(fabricated_resolved.capacity.card_bytes / 2**30, rel=1e-5)


def test_host_ram_is_shown_per_rank_and_in_total(figures, fabricated_resolved):
    bars = {row["bar"]: row["gib"] for row in values_of(figures["host"])}
    assert bars["per rank"] == pytest.approx(fabricated_resolved.capacity.host_bytes_per_rank / 2**30, rel=1e-5)
    assert bars["total (8 ranks)"] == pytest.approx(fabricated_resolved.capacity.host_bytes_total / 2**30, rel=1e-5)


def test_slo_bounds_are_rules_in_the_latency_figure(figures):
    rules = {row["label"] for row in values_of(figures["latency"]) if "label" in row}
    assert rules == {"SLO TTFT 2 s", "SLO TPOT 0.1 s"}


def test_latency_axis_is_logarithmic_and_shares_run_to_100(figures):
    encoding = encodings(figures["latency"])[0]
    assert encoding["x"]["scale"]["type"] == "log"
    assert encoding["y"]["scale"]["domain"] == [0, 100]
    assert max(row["percent"] for row in values_of(figures["latency"]) if "percent" in row) == 100


def test_ttft_parts_weighted_by_requests_add_up_to_the_mean_ttft(figures, fabricated_summary):
    rows = values_of(figures["ttft-split"])
    total = sum(row["seconds"] * row["requests"] for row in rows)
    count = sum(row["requests"] for row in rows if row["part"] == "queue")
    assert total / count == pytest.approx(fabricated_summary["ttft_s"]["mean_all"], rel=1e-4)


def test_hit_tokens_over_time_and_by_turn_add_up_to_prompt_tokens(figures, fabricated_summary):
    for key in ("hits-time", "hits-turn"):
        by_tier = {}
        for row in values_of(figures[key]):
            by_tier[row["tier"]] = by_tier.get(row["tier"], 0) + row["tokens"]
        hits = fabricated_summary["hits"]
        assert by_tier == {"device": hits["device_tokens"], "host": hits["host_tokens"], "miss": hits["miss_tokens"]}, key


def test_capacities_are_rules_in_the_occupancy_figure(figures):
    rules = {row["tier"]: row["tokens"] for row in values_of(figures["occupancy"]) if "label" in row}
    assert rules == {"device": 10_000, "host": 40_000}


def test_gpu_shares_add_up_to_the_whole_time(figures):
    by_bin = {}
    for row in values_of(figures["gpu"]):
        by_bin[row["start"]] = by_bin.get(row["start"], 0) + row["percent"]
    assert all(total == pytest.approx(100, abs=0.01) for total in by_bin.values())


def test_without_a_host_tier_neither_host_ram_nor_idle_links_are_drawn(fabricated_summary):
    recording = report_world.fabricate(10)
    recording.transfers.clear()
    figures = specs_of(recording, fabricated_summary, report_world.capacity(host_tokens=0))
    assert "host" not in figures
    assert "links" not in figures
    assert {row["tier"] for row in values_of(figures["occupancy"])} == {"device"}


def test_a_run_in_which_nothing_started_still_shows_its_memory(fabricated_summary):
    figures = specs_of(Recording(report_world.scenario()), fabricated_summary, report_world.capacity())
    assert list(figures) == ["card", "host"]


def test_an_overfull_card_has_no_negative_part():
    from kvsim.report.memory_figures import card_parts

    assert min(card_parts(report_world.capacity(weight_bytes=200 * 2**30)).values()) == 0
