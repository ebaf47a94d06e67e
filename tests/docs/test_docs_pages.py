"""The documentation: every example runs, every link leads somewhere, what is generated agrees with what it is made from."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from docs_examples import blocks, run_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WITH_EXAMPLES = [page for page in PAGES if any(block.kind == "run" for block in blocks(page))]


def relative(page):
    return str(page.relative_to(DOCS))


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=relative)
def test_every_example_of_the_page_runs(page, tmp_path):
    assert run_page(page, tmp_path) > 0


def test_a_false_output_in_a_page_is_noticed(tmp_path):
    page = tmp_path / "p.md"
    page.write_text("<!-- run -->\n```python\nprint('one two')\n```\n\n<!-- output -->\n```\ntwo three\n```\n")
    with pytest.raises(AssertionError, match="not printed: two three"):
        run_page(page, tmp_path)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name if page.parent == ROOT else relative(page))
def test_every_link_leads_to_a_file_or_heading(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"^[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor and file.suffix == ".md":
            slugs = {
                re.sub(r"[^\w\- ]", "", line.lstrip("# ").strip().lower()).replace(" ", "-")
                for line in file.read_text("utf-8").splitlines()
                if line.startswith("#")
            }
            assert anchor in slugs, f"{page.name}: {target}"


def test_the_four_kinds_are_there(build):
    for kind in ("tutorial", "guides", "reference", "background", "lessons"):
        assert list((DOCS / kind).glob("*.md")), kind


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8")
    missing = [relative(page) for page in PAGES if relative(page) not in nav]
    assert missing == []


def test_the_reference_names_every_command_key_column_and_metric(build):
    from kvsim.cli.app import COMMANDS
    from kvsim.config.schema import Scenario
    from kvsim.record.store import TABLES
    from kvsim.report.metric_names import METRICS
    from kvsim.rules import names
    from kvsim.rules.sglang import RULES

    pages = build.pages()
    assert all(f"kvsim {name}" in pages["reference/commands.md"] for name in build.known_commands())
    assert set(build.known_commands()) <= set(COMMANDS)
    assert all(f"`{key}`" in pages["reference/scenario.md"] for key in Scenario.model_fields)
    assert all(f"`{column}`" in pages["reference/tables.md"] for columns in TABLES.values() for column in columns)
    assert all(metric.name in pages["reference/metrics.md"] for metrics in METRICS.values() for metric in metrics)
    assert all(field in pages["reference/rules.md"] for field in next(iter(RULES.values())).__dataclass_fields__ if field != "name")
    text = pages["reference/rules.md"] + (DOCS / "reference" / "vllm-rules.md").read_text("utf-8")
    assert all(name.split("-")[1] in text for name in names())


def test_every_typical_wrong_answer_is_on_the_teachers_page(build):
    from kvsim.web.lessons import LESSONS, exercises

    page = build.pages()["lessons/README.md"]
    for lesson, (title, *_) in LESSONS.items():
        assert title in page
        for exercise in exercises(lesson):
            assert exercise.question in page
            assert all(why in page for _, why in exercise.wrong)


def test_what_is_not_modelled_is_said_in_the_same_words_as_in_reports():
    from kvsim.report.limits import NOT_MODELLED

    text = " ".join((DOCS / "background" / "model.md").read_text("utf-8").split())
    for what, meaning in NOT_MODELLED:
        assert f"**{what}**" in text
        assert meaning in text


def test_every_function_the_model_page_names_exists():
    import importlib

    text = (DOCS / "background" / "model.md").read_text("utf-8")
    names = re.findall(r"`((?:kv|cost|serving|config|sim|measure|workload)(?:\.\w+)+)`", text)
    assert len(names) >= 25
    for name in names:
        module, _, rest = f"kvsim.{name}".rpartition(".")
        try:
            found = importlib.import_module(f"kvsim.{name}")
        except ImportError:
            try:
                found = getattr(importlib.import_module(module), rest)
            except ImportError:
                outer, _, cls = module.rpartition(".")
                found = getattr(getattr(importlib.import_module(outer), cls), rest)
        assert found is not None, name


def test_every_invariant_names_a_test_that_exists():
    text = (DOCS / "background" / "invariants.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) >= 12
    for file, test in named:
        path = ROOT / file
        assert path.exists(), file
        assert not test or f"def {test}(" in path.read_text("utf-8"), f"{file}::{test}"


@pytest.mark.long
def test_the_committed_reference_is_the_generated_one(build):
    for name, text in build.pages().items():
        assert (DOCS / name).read_text("utf-8") == text, f"{name} is stale: run `python docs/build.py --pages`"
