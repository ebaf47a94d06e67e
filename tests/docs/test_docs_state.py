"""Examples leave no trace: what a page registers or changes is gone after it."""

from __future__ import annotations

import os
import sys

import pytest
from docs_examples import run_page

from kvsim.config.schema.family import FAMILIES
from kvsim.kv.eviction import ORDERS
from kvsim.report.limits import NOT_MODELLED
from kvsim.rules import _SETS, names
from kvsim.serving.router import ROUTERS
from kvsim.serving.sglang.order import ORDERS as QUEUE_ORDERS
from kvsim.sim.build import SCHEDULERS

REGISTRIES = {
    "kvsim.kv.eviction.ORDERS": ORDERS,
    "kvsim.serving.sglang.order.ORDERS": QUEUE_ORDERS,
    "kvsim.serving.router.ROUTERS": ROUTERS,
    "kvsim.sim.build.SCHEDULERS": SCHEDULERS,
    "kvsim.config.schema.family.FAMILIES": FAMILIES,
    "kvsim.rules._SETS": _SETS,
}


def page_with(tmp_path, code):
    page = tmp_path / "p.md"
    page.write_text(f"<!-- run -->\n```python\n{code}\n```\n")
    return page


@pytest.mark.parametrize("where", REGISTRIES)
def test_what_a_page_registers_is_gone_after_it(tmp_path, where):
    registry = REGISTRIES[where]
    before = list(registry.items())
    module, _, name = where.rpartition(".")
    change = f"{name}['new'] = None; first = next(iter({name})); {name}[first] = None; assert len({name}) == {len(before) + 1}"
    run_page(page_with(tmp_path, f"from {module} import {name}\n{change}"), tmp_path)
    assert list(registry.items()) == before


def test_a_name_a_page_rebinds_is_bound_again(tmp_path):
    run_page(page_with(tmp_path, "import kvsim.report.limits as limits\nlimits.NOT_MODELLED = ()"), tmp_path)
    import kvsim.report.limits as limits

    assert limits.NOT_MODELLED is NOT_MODELLED


def test_a_page_that_fails_leaves_no_trace_either(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run_page(page_with(tmp_path, "from kvsim.kv.eviction import ORDERS\nORDERS.clear()\n1 / 0"), tmp_path)
    assert "lru" in ORDERS


def test_environment_and_path_are_as_before(tmp_path):
    path, environment = list(sys.path), dict(os.environ)
    run_page(page_with(tmp_path, "import os, sys\nsys.path.insert(0, '.')\nos.environ['KVSIM_X'] = '1'"), tmp_path)
    assert (sys.path, dict(os.environ)) == (path, environment)


def test_the_page_on_extending_leaves_every_list_of_names_alone(tmp_path, root):
    before = {where: list(registry) for where, registry in REGISTRIES.items()}, names()
    run_page(root / "docs" / "guides" / "extend.md", tmp_path)
    assert ({where: list(registry) for where, registry in REGISTRIES.items()}, names()) == before
