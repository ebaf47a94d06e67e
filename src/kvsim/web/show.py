"""Library values as page elements: what the cells of lab and lessons call. ``mo`` is the marimo module of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.web.world_figures import pools_chart, request_table, tree_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.report.style import DataTable, Figure
    from kvsim.web.lessons.exercise import Exercise
    from kvsim.web.world import Frame, World


_MARKS = {ord(mark): f"&#{ord(mark)};" for mark in "&<>\"'\\`*_{}[]()#+-!|~$"}


def text(value: str) -> str:
    """Return text safe inside Markdown and HTML: nothing in it is markup."""
    return value.translate(_MARKS)


def table(mo: Any, data: DataTable) -> Any:
    """Return a small table as HTML with headings; every cell is escaped."""
    import html

    head = "".join(f'<th scope="col" style="text-align:left;padding:2px 10px">{html.escape(h)}</th>' for h in data.headers)
    body = "".join(
        "<tr>" + "".join(f'<td style="padding:2px 10px;vertical-align:top">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in data.rows
    )
    return mo.Html(f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def code(mo: Any, value: str) -> Any:
    """Return text as it is, in a box that scrolls."""
    import html

    return mo.Html(f'<pre style="overflow-x:auto;background:#f6f6f6;padding:10px">{html.escape(value)}</pre>')


def figure(mo: Any, value: Figure) -> Any:
    """Return a figure with its heading, words, chart and table."""
    return mo.vstack(
        [
            mo.md(f"### {text(value.title)}\n\n{text(value.caption)}"),
            value.chart,
            mo.accordion({"The same as a table": table(mo, value.table)}),
        ]
    )


def figures(mo: Any, found: dict[str, Figure], keys: Sequence[str]) -> Any:
    """Return those of the figures that are there, below each other."""
    return mo.vstack([figure(mo, found[key]) for key in keys if key in found])


def answers_for(mo: Any, exercises: Sequence[Exercise]) -> Any:
    """Return one number field per exercise, as one element."""
    return mo.ui.array([mo.ui.number(label=f"your answer ({e.unit})" if e.unit else "your answer", value=None) for e in exercises])


def sheet(mo: Any, exercises: Sequence[Exercise], answers: Any) -> Any:
    """Return the questions with their fields and what is said to each answer."""
    items = [mo.md("## Exercises")]
    for number, (exercise, field, value) in enumerate(zip(exercises, answers, answers.value, strict=True), 1):
        items += [mo.md(f"**{number}.** {text(exercise.question)}"), field]
        verdict = exercise.check(value)
        if verdict.right is not None:
            items.append(mo.callout(mo.md(text(verdict.text)), kind="success" if verdict.right else "warn"))
    return mo.vstack(items)


def moment(mo: Any, frame: Frame, world: World) -> Any:
    """Return one moment of a small world: clock, what happened, the tree, the pools, the requests."""
    happened = "\n".join(f"- {text(event)}" for event in frame.events) or "- nothing else"
    heading = f"**Moment {frame.number} of {len(world.frames) - 1}, clock {frame.clock_s:g} s: {text(frame.title)}**\n\n{happened}"
    tree = tree_chart(frame) if frame.nodes else mo.md("*The tree is empty.*")
    return mo.vstack([mo.md(heading), tree, pools_chart(frame), table(mo, request_table(frame))])


def stepper(mo: Any, get: Any, put: Any, last: int) -> Any:
    """Return buttons back and forward and a slider over the moments 0 to ``last``, all moving one state.

    Bind the result to a name of its own in the page (what is not held is forgotten), and show ``row`` of it.
    """
    last = max(last, 1)
    back = mo.ui.button(label="back", on_click=lambda _: put(lambda n: max(n - 1, 0)))
    forward = mo.ui.button(label="forward", on_click=lambda _: put(lambda n: min(n + 1, last)))
    slider = mo.ui.slider(0, last, value=min(get(), last), label="moment", on_change=put, show_value=True, full_width=True)
    return mo.ui.dictionary({"back": back, "forward": forward, "moment": slider})


def row(mo: Any, elements: Any) -> Any:
    """Return the elements of a dictionary beside each other."""
    return mo.hstack(list(elements.elements.values()), justify="start", gap=1.5, wrap=True)
