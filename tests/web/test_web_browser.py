"""Report, lab and a lesson in a real Chromium: no console errors, no request to anywhere, controls move what they
should.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from kvsim.api import load, resolve, simulate
from kvsim.measure.summary import summarise
from kvsim.report.html import write_report
from kvsim.report.tables import flatten

NASTY = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=2">'
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on this machine (tests never install it)")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        opened = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def watched(browser, allowed, width=1280):
    """Give a page and fail afterwards if it logged an error or asked for anything but ``allowed`` places."""
    page = browser.new_page(viewport={"width": width, "height": 1000})
    faults = []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(allowed) else faults.append(f"request: {request.url}"))
    yield page
    page.close()
    assert faults == []


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A real run of the toy server whose title and request ids try to be markup."""
    resolved = resolve(load("toy", ["workload.requests=60"]))
    recording = simulate(resolved)
    for row in recording.requests:
        row.id = f"{NASTY}{row.id}"
    recording.resolved = {**recording.resolved, "title": NASTY}
    resolved.data["title"] = NASTY
    summary = summarise(recording)
    path = write_report(recording, summary, resolved, tmp_path_factory.mktemp("browser") / "report.html")
    return path, summary


LOCAL = ("file://", "data:", "blob:")


def drawn(page, url):
    page.goto(url)
    page.wait_for_selector("body[data-drawn]", timeout=60_000)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_opens_from_disk_at_every_width(browser, report, width):
    with watched(browser, LOCAL, width) as page:
        drawn(page, report[0].as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        charts = page.locator(".chart")
        assert charts.count() >= 8
        assert page.locator(".chart svg.marks").count() == charts.count()
        assert page.get_by_role("heading", level=1).inner_text()
        assert page.get_by_role("heading", level=2).count() >= 7


CUT_OFF = """[...document.querySelectorAll('.chart svg text')].filter(text => {
    const box = text.getBoundingClientRect(), frame = text.closest('svg').getBoundingClientRect();
    return text.textContent && box.width && (box.right > frame.right + 1 || box.left < frame.left - 1);
}).map(text => text.closest('.chart').id + ': ' + text.textContent)"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_word_of_a_chart_is_cut_off(browser, report, width):
    with watched(browser, LOCAL, width) as page:
        drawn(page, report[0].as_uri())
        page.wait_for_timeout(300)
        assert page.evaluate(CUT_OFF) == []


def test_a_table_of_sentences_needs_no_sideways_scrolling_on_a_phone(browser, report):
    with watched(browser, LOCAL, 390) as page:
        drawn(page, report[0].as_uri())
        tables = page.locator("table.wordy:visible")
        assert tables.count() >= 2
        assert all(tables.nth(i).evaluate("t => t.scrollWidth <= t.parentElement.clientWidth") for i in range(tables.count()))


def test_a_table_of_the_report_equals_the_summary(browser, report):
    with watched(browser, LOCAL) as page:
        drawn(page, report[0].as_uri())
        shown = page.eval_on_selector_all(
            "#summary-table tbody tr",
            "rows => rows.map(r => [r.querySelector('th').textContent, r.querySelector('td').dataset.value])",
        )
    expected = dict(flatten({key: value for key, value in report[1].items() if key != "definitions"}))
    assert {key: json.loads(value) for key, value in shown} == json.loads(json.dumps(expected))


def test_markup_in_ids_and_titles_stays_text(browser, report):
    with watched(browser, LOCAL) as page:
        drawn(page, report[0].as_uri())
        assert page.evaluate("window.hacked") is None
        assert page.get_by_text("<img src=x").count() > 0
        block = page.evaluate("JSON.parse(document.getElementById('kvsim-scenario').textContent).resolved.title")
        assert block == NASTY


def test_charts_can_be_reached_by_their_tables_with_the_keyboard(browser, report):
    with watched(browser, LOCAL) as page:
        drawn(page, report[0].as_uri())
        first = page.locator("figure details").first
        first.locator("summary").focus()
        page.keyboard.press("Enter")
        assert first.locator("table").is_visible()


@contextmanager
def served(path):
    """Serve a marimo page on loopback and give its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "marimo",
        "run",
        str(path),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--headless",
        "--no-token",
    ]
    server = subprocess.Popen(
        command,
        env={**os.environ, "MARIMO_SKIP_UPDATE_CHECK": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def places(address):
    return (f"http://{address}", f"ws://{address}", "data:", "blob:")


@pytest.fixture(scope="module")
def lab_page(browser, root):
    """The lab in one window for all its tests; it must not have logged an error when they are done."""
    with served(root / "src" / "kvsim" / "web" / "lab_app.py") as address, watched(browser, places(address)) as page:
        page.goto(f"http://{address}")
        page.get_by_text("requests finished").first.wait_for(timeout=90_000)
        page.get_by_text("Moment 0 of").first.wait_for(timeout=90_000)
        yield page


def slide(page, label, presses, key="ArrowRight"):
    """Move a slider with the keyboard."""
    thumb = page.locator("marimo-slider", has_text=label).get_by_role("slider").first
    thumb.focus()
    for _ in range(presses):
        page.keyboard.press(key)


HOST_TOKENS = "distinct tokens; each is stored"
CHANGED = """old => [...document.querySelectorAll('p, span.paragraph')]
    .some(p => p.textContent.includes('distinct tokens; each is stored') && p.textContent.trim() !== old)"""


def test_a_slider_of_the_lab_moves_the_figures(lab_page):
    before = lab_page.get_by_text(HOST_TOKENS).first.inner_text().strip()
    slide(lab_page, "hicache ratio", 1)
    lab_page.wait_for_function(CHANGED, arg=before, timeout=60_000)
    after = lab_page.get_by_text(HOST_TOKENS).first.inner_text()
    tokens = [int(text.split()[0].replace(",", "")) for text in (before, after)]
    assert tokens[1] == pytest.approx(tokens[0] * 4.5 / 4, rel=1e-3)


def test_the_small_world_goes_forward_and_back(lab_page):
    forward, back = (lab_page.get_by_role("button", name=name, exact=True) for name in ("forward", "back"))
    forward.click()
    lab_page.get_by_text("Moment 1 of").first.wait_for(timeout=30_000)
    assert lab_page.get_by_text("request 1 arrives").count() > 0
    forward.click()
    lab_page.get_by_text("Moment 2 of").first.wait_for(timeout=30_000)
    back.click()
    lab_page.get_by_text("Moment 1 of").first.wait_for(timeout=30_000)


def test_the_lab_says_which_numbers_it_shows_and_offers_them_for_download(lab_page):
    assert lab_page.get_by_role("heading", name="Advice").count() == 1
    assert lab_page.get_by_text("The same from the command line").count() == 1
    assert lab_page.get_by_text("scenario", exact=True).count() >= 1


def test_a_bad_launch_command_is_answered_in_words(lab_page):
    box = lab_page.locator("textarea").first
    box.fill("python -m sglang.launch_server --tp <b>eight</b>")
    box.blur()
    lab_page.get_by_text("eight").nth(1).wait_for(timeout=60_000)
    assert lab_page.get_by_text("Traceback").count() == 0
    assert lab_page.locator("b", has_text="eight").count() == 0


@pytest.mark.long
def test_a_large_load_is_watched_and_stopped_in_the_browser(browser, root, tmp_path):
    rows = [{"timestamp": 150 * i, "input_length": 3072, "output_length": 60, "hash_ids": [*range(5), 10 + i]} for i in range(100_000)]
    (tmp_path / "big.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with served(root / "src" / "kvsim" / "web" / "lab_app.py") as address, watched(browser, places(address)) as page:
        page.goto(f"http://{address}")
        page.get_by_text("requests finished").first.wait_for(timeout=90_000)
        page.locator("input[type=file]").first.set_input_files(tmp_path / "big.jsonl")
        page.get_by_text("Uploaded").first.wait_for(timeout=60_000)
        slide(page, "at most so many", 5)
        page.get_by_role("button", name="simulate this large load").click(timeout=60_000)
        page.get_by_text("simulating:").first.wait_for(timeout=60_000)
        page.get_by_role("button", name="stop", exact=True).click()
        page.get_by_text("cancelled", exact=True).first.wait_for(timeout=60_000)


@pytest.mark.long
@pytest.mark.parametrize("lesson", ["1_bytes", "2_prefix", "3_trip", "4_knee", "5_scheduler"])
def test_a_lesson_checks_answers_in_the_browser(browser, root, lesson):
    from kvsim.web.lessons import exercises

    first = exercises(lesson[2:])[0]
    with served(root / "docs" / "lessons" / f"{lesson}.py") as address, watched(browser, places(address)) as page:
        page.goto(f"http://{address}")
        fields = page.get_by_label("your answer", exact=False)
        fields.first.wait_for(timeout=90_000)
        assert page.locator("marimo-number").count() == len(exercises(lesson[2:]))
        fields.first.fill(str(first.wrong[0][0]))
        fields.first.press("Enter")
        page.get_by_text("Not quite").first.wait_for(timeout=30_000)
        fields.first.fill(str(first.right))
        fields.first.press("Enter")
        page.get_by_text("Right:").first.wait_for(timeout=30_000)
