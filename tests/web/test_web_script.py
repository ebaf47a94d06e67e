"""Scripts of small worlds, and jobs in threads."""

from __future__ import annotations

import threading

import pytest

from kvsim.content import length
from kvsim.errors import InputError
from kvsim.web.job import Job
from kvsim.web.script import ScriptClient, parse

TEXT = """
# a remark
0    sys:400 anna:200            50
1.5  sys anna @1 anna2:80 50   # a later turn contains the answer
"""


def test_equal_names_are_equal_text_and_answers_are_part_of_later_prompts():
    first, second = parse(TEXT).specs
    assert first.prompt_tokens == length(first.prompt) == 600
    assert second.prompt_tokens == 400 + 200 + 50 + 80
    assert second.prompt[0] == first.prompt[0]
    assert (first.output_first, 50) in second.prompt


def test_content_is_labelled_with_names_and_positions_of_parts():
    script = parse(TEXT)
    base = script.pieces["anna"][0]
    assert script.label(script.specs[0].prompt) == "sys anna"
    assert script.label([(base + 10, 90)]) == "anna[10:100]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no request"),
        ("0 5", "line 1: needs seconds"),
        ("x a:1 5", "line 1: seconds must be a number, got 'x'"),
        ("0 a 5", "needs its tokens when it first appears"),
        ("0 a:0 5", "whole number of tokens"),
        ("0 a:1.5 5", "whole number of tokens"),
        ("0 @3 5", "not the number of an earlier request"),
        ("0 a:1 5\n0 a:2 5", "line 2: piece 'a' had 1 tokens before, now 2"),
        ("-1 a:1 5", "must not be negative"),
        ("0 a:1 0", "at least 1"),
        ("0 a:1 1\n" * 201, "too many for a small world"),
    ],
)
def test_a_bad_script_names_its_line_and_what_is_allowed(text, message):
    with pytest.raises(InputError, match=message):
        parse(text)


def test_the_client_sends_each_request_at_its_time():
    client = ScriptClient(parse(TEXT).specs)
    assert client.next_send() == 0
    assert [spec.id for spec in client.send(10**12)] == ["1"]
    assert client.next_send() == 15 * 10**11
    assert [spec.id for spec in client.unsent()] == ["2"]


def test_a_job_gives_its_result():
    job = Job(lambda progress: progress(3) or "answer").join(10)
    assert (job.state, job.done, job.result) == ("done", 3, "answer")


def test_a_job_stops_at_its_next_progress_report():
    started, go = threading.Event(), threading.Event()

    def work(progress):
        started.set()
        go.wait(10)
        progress(1)
        return "never"

    job = Job(work)
    started.wait(10)
    job.cancel()
    go.set()
    assert job.join(10).state == "cancelled"
    assert job.result is None


def test_a_job_reports_an_error_of_ours_as_text():
    def work(progress):
        raise InputError("what is wrong")

    job = Job(work).join(10)
    assert (job.state, job.error) == ("failed", "what is wrong")


def test_a_job_does_not_swallow_a_bug():
    def work(progress):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Job(work).join(10)
