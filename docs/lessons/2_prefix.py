"""Lesson 2. Why a prefix cache works, and how it fails. Run with `marimo run docs/lessons/2_prefix.py`, or as a script."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="2. Why a prefix cache works, and how it fails")


@app.cell
def _():
    import marimo as mo

    from kvsim.errors import KvsimError
    from kvsim.web import show
    from kvsim.web.lessons import prefix as lesson
    from kvsim.web.world import build_world

    return KvsimError, build_world, lesson, mo, show


@app.cell
def _(mo):
    mo.md(
        """
        # 2. Why a prefix cache works, and how it fails

        KV of a token depends on **every token before it**. So what one request computed can serve another exactly as
        far as both
        texts are the same **from the first token on**. The server keeps computed text in a *radix tree*: a path from
        the root is
        a text, branches are where texts part.

        Below is a small world run by the real rules of SGLang 0.5.9: change the script, then step through it. A line
        is:
        seconds, pieces of the prompt (`name:tokens`, the same name is the same text, `@1` is the answer of request 1),
        output tokens.
        """
    )


@app.cell
def _(lesson, mo):
    script = mo.ui.text_area(value=lesson.FIRST.strip(), label="script", rows=7, full_width=True)
    page = mo.ui.dropdown({"1": 1, "16": 16, "64": 64}, value="1", label="page size (tokens)")
    mo.vstack([script, page])
    return page, script


@app.cell
def _(KvsimError, build_world, lesson, mo, page, script, show):
    try:
        world, problem = build_world(script.value, lesson.settings(page.value)), None
    except KvsimError as error:
        world, problem = lesson.world(1), mo.callout(mo.md(show.text(str(error))), kind="danger")
    get_moment, set_moment = mo.state(0)
    problem
    return get_moment, set_moment, world


@app.cell
def _(get_moment, mo, set_moment, show, world):
    steps = show.stepper(mo, get_moment, set_moment, len(world.frames) - 1)
    show.row(mo, steps)
    return (steps,)


@app.cell
def _(get_moment, mo, show, world):
    show.moment(mo, world.frame(get_moment()), world)


@app.cell
def _(lesson, mo, show):
    mo.vstack(
        [
            mo.md(
                """
                ## What to look for

                - Each bar is a piece of text in the tree; its length is its tokens. A thick edge is a lock: a running
                request needs it.
                - The second request uses the same system prompt: the node is *split* where the texts part.
                - One new word **in front** of the system prompt, and nothing matches.
                - With pages, only whole pages are shared.

                On the anchor machine pages hold one token (flashinfer's choice there). In what follows, the hits of the
                script above:
                """
            ),
            show.table(mo, lesson.hit_table(lesson.world(1), lesson.world(64))),
        ]
    )


@app.cell
def _(lesson, mo, show):
    questions = lesson.exercises()
    answers = show.answers_for(mo, questions)
    return answers, questions


@app.cell
def _(answers, mo, questions, show):
    show.sheet(mo, questions, answers)


if __name__ == "__main__":
    app.run()
