"""What `trace info` says of a file: unit, what is missing, recorded hits; and the options that cut and scale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.content import common
from kvsim.workload.info import inspect
from kvsim.workload.read import open_trace

S = 10**12


def kvsim(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kvsim", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "unit"),
    [("o33_mooncake_ms.jsonl", "milliseconds"), ("o33_bailian_seconds.jsonl", "seconds"), ("o33_epoch_seconds.jsonl", "epoch seconds"), ("o34_azure2023_bom.csv", "dates")],
)
def test_the_unit_that_times_were_taken_for_is_said(shared: Path, name: str, unit: str) -> None:
    assert inspect(open_trace(str(shared / "cases" / name))).unit == unit


@pytest.mark.parametrize(
    ("name", "unit", "span"), [("o33_mooncake_ms.jsonl", "us", 0.003), ("o33_mooncake_ms.jsonl", "s", 3000.0), ("o33_mooncake_ms.jsonl", "ms", 3.0)]
)
def test_a_unit_given_on_purpose_is_said_and_one_that_is_wrong_is_warned_of(shared: Path, name: str, unit: str, span: float) -> None:
    found = inspect(open_trace(str(shared / "cases" / name), time_unit=unit))
    assert found.unit == f"{unit} (given)"
    assert found.span_s == pytest.approx(span)
    assert any("check the time unit" in note for note in found.notes) == (unit != "ms")


@pytest.mark.parametrize(("cell", "unit"), [("1787481184", "epoch seconds"), ("17.5", "seconds"), ("2026-01-01 00:00:00", "dates"), ("1787481184000", "epoch milliseconds")])
def test_the_unit_of_a_plain_csv_is_that_of_its_first_row(tmp_path: Path, cell: str, unit: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f"when,i,o\n{cell},5,1\n")
    assert open_trace(str(file), columns={"time": "When", "input": "i", "output": "o"}).report.unit == unit


def test_files_without_times_say_how_they_are_laid_out(shared: Path) -> None:
    for name in ("sharegpt.json", "sglang_bench_output_details.jsonl", "weka.jsonl"):
        notes = inspect(open_trace(str(shared / "cases" / "formats" / name))).notes
        assert any("workload.arrivals" in note for note in notes), name


def test_images_of_an_azure_file_are_said_not_to_be_modelled(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-01-01 00:00:00.5,2,100,5\n2025-01-01 00:00:01,0,10,5\n")
    found = inspect(open_trace(str(file)))
    assert (found.format, found.prompt_tokens, found.span_s) == ("azure", 110, 0.5)
    assert any("NumImages" in note for note in found.notes)


def test_recorded_hits_are_shown_beside_the_ceiling(shared: Path) -> None:
    done = kvsim("trace", "info", str(shared / "cases" / "formats" / "openai_access.log"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recorded_hit_rate"] is not None
    assert json.loads(kvsim("trace", "info", str(shared / "cases" / "formats" / "mooncake.jsonl"), "--json").stdout)["recorded_hit_rate"] is None


def test_equal_messages_of_two_conversations_are_one_text(tmp_path: Path) -> None:
    def talk(name: str, *texts: str) -> dict[str, object]:
        return {"id": name, "conversations": [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(texts)]}

    file = tmp_path / "s.json"
    file.write_text(json.dumps([talk("a", "you are kind " * 10, "yes " * 4, "b c", "d"), talk("b", "you are kind " * 10, "yes " * 4, "other words", "d")]))
    reader = open_trace(str(file), tokens_per_word=1, arrivals={"rate_per_s": 0.5})
    a0, a1, b0, b1 = sorted(reader, key=lambda spec: (spec.session or "", spec.turn))
    assert reader.report.content.startswith("text")
    assert (a0.prompt, a0.output_first) == (b0.prompt, b0.output_first)
    assert common(a1.prompt, b1.prompt) == 34
    assert (a1.prompt_tokens, b1.prompt_tokens) == (36, 36)
    assert (a0.arrival_ps, b0.arrival_ps) == (0, 2 * S)


def table(folder: Path) -> Path:
    file = folder / "t.jsonl"
    rows = [{"timestamp": 1000 * n, "input_length": 9, "output_length": 1, "session_id": f"s{n % 4}", "end": 1000 * n + 300} for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_window_moves_recorded_ends_with_the_starts(tmp_path: Path) -> None:
    found = list(open_trace(str(table(tmp_path)), start=5, end=8))
    assert [(r.arrival_ps, r.recorded_end_ps) for r in found] == [(n * S, n * S + 3 * S // 10) for n in range(3)]


def test_a_rate_scale_divides_arrivals_and_keeps_how_long_answers_took(tmp_path: Path) -> None:
    found = list(open_trace(str(table(tmp_path)), rate_scale=4, limit=3))
    assert [(r.arrival_ps, r.recorded_end_ps) for r in found] == [(n * S // 4, n * S // 4 + 3 * S // 10) for n in range(3)]


def test_convert_cuts_scales_and_samples(tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    done = kvsim("trace", "convert", str(table(tmp_path)), "-o", str(out), "--start", "4", "--end", "12", "--rate-scale", "2", "--limit", "5")
    assert done.returncode == 0, done.stderr
    assert [r.arrival_ps for r in open_trace(str(out))] == [n * S // 2 for n in range(5)]


@pytest.mark.parametrize(("option", "value"), [("--rate-scale", "0"), ("--rate-scale", "-1"), ("--sample-sessions", "2")])
def test_options_out_of_range_are_refused(tmp_path: Path, option: str, value: str) -> None:
    done = kvsim("trace", "info", str(table(tmp_path)), option, value)
    assert done.returncode == 2
    assert "must be above 0" in done.stderr


def test_a_mooncake_delay_is_think_time_and_stands_in_for_a_missing_timestamp(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 0, "session_id": "a", "input_length": 9, "output_length": 1},
        {"session_id": "a", "input_length": 20, "output_length": 1, "delay": 2500},
        {"timestamp": 3000, "session_id": "b", "input_length": 9, "output_length": 1, "priority": 3},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(open_trace(str(file)))
    assert [(r.session, r.turn, r.arrival_ps, r.think_ps, r.priority) for r in found] == [
        ("a", 0, 0, None, None), ("a", 1, 5 * S // 2, 5 * S // 2, None), ("b", 0, 3 * S, None, 3),
    ]  # fmt: skip


def test_adapters_and_cache_salts_of_a_log_are_spaces_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "m.log"
    file.write_text(
        "".join(
            json.dumps({"request_parameters": json.dumps(given), "prompt_tokens": 10, "completion_tokens": 2, "request_received_ts": 1787481184.5 + n, "e2e_latency": 1}) + "\n"
            for n, given in enumerate([{"lora_path": "tuned"}, {"cache_salt": "x"}, {"rid": "1"}])
        )
    )
    assert [r.namespace for r in open_trace(str(file))] == ["tuned", "x", ""]


def test_a_csv_may_have_ends_tenants_and_namespaces(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("t,i,o,end,who,space,hit\n10,5,1,12.5,me,n1,3\n11,5,1,,you,,\n")
    columns = {"time": "t", "input": "i", "output": "o", "end": "end", "tenant": "who", "namespace": "space", "cached": "hit"}
    found = [(r.recorded_end_ps, r.tenant, r.namespace, r.recorded_cached_tokens) for r in open_trace(str(file), columns=columns)]
    assert found == [(5 * S // 2, "me", "n1", 3), (None, "you", "", None)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[2026-08-23 10:00:00 TP0] Decode batch, #running-req: 4, #token: 26, token usage: 1.00, #queue-req: 3\n", "no requests to replay"),
        ('{"time_to_first_token": {"unit": "ms", "avg": 44.2}, "request_throughput": {"avg": 3.1}}\n', "averages and percentiles only"),
    ],
)
def test_files_without_requests_are_named_for_what_they_are(tmp_path: Path, text: str, words: str) -> None:
    from kvsim.errors import TraceError

    file = tmp_path / "f"
    file.write_text(text)
    with pytest.raises(TraceError, match=words):
        open_trace(str(file))


def test_a_weka_conversation_on_many_lines_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]}, indent=2))
    (tmp_path / "b.json").write_text(json.dumps({"id": "b", "block_size": 64, "requests": [{"t": 1, "in": 64, "out": 1, "hash_ids": [1]}]}, indent=2))
    found = list(open_trace(str(tmp_path)))
    assert [(r.session, r.arrival_ps // S, r.namespace) for r in found] == [("a", 0, "a"), ("b", 1, "b")]
