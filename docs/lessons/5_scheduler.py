"""Lesson 5. What the scheduler does to your latency. Run with `marimo run docs/lessons/5_scheduler.py`, or as a script."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="5. What the scheduler does to your latency")


@app.cell
def _():
    import marimo as mo

    from kvsim.web import show
    from kvsim.web.lessons import scheduler as lesson

    return lesson, mo, show


@app.cell
def _(mo):
    mo.md(
        """
        # 5. What the scheduler does to your latency

        The GPU does one *step* at a time: a prefill step reads prompts, a decode step gives every running request one
        token.
        SGLang's scheduler decides before each step, and its first rule is short: **if a prompt can be admitted, prefill
        goes first.**
        """
    )


@app.cell
def _(mo):
    chunk = mo.ui.dropdown({"off": None, "1,000": 1000, "500": 500, "250": 250}, value="off", label="chunked prefill (tokens)")
    mo.vstack(
        [
            mo.md(
                "## Prefill first\n\nOne request decodes at 10 ms per token. At 0.5 s a prompt "
                "of 2,000 tokens arrives (prefill: 1,000 tokens/s)."
            ),
            chunk,
        ]
    )
    return (chunk,)


@app.cell
def _(chunk, lesson, mo, show):
    mo.vstack(
        [
            lesson.steps_chart(lesson.interrupted(chunk.value)),
            mo.md(show.text(lesson.gap_sentence(lesson.interrupted(chunk.value)))),
        ]
    )


@app.cell
def _(mo):
    cap = mo.ui.slider(1, 4, value=2, label="at most so many requests run", show_value=True)
    mo.vstack([mo.md("## The batch cap\n\nFour requests arrive at once, 100 tokens in and 100 out each."), cap])
    return (cap,)


@app.cell
def _(cap, lesson, mo, show):
    mo.vstack([lesson.steps_chart(lesson.crowd(cap.value)), show.table(mo, lesson.cap_table())])


@app.cell
def _(lesson, mo, show):
    mo.vstack(
        [
            mo.md(
                """
                ## Retraction

                Nobody knows how long an answer will be. SGLang admits a request if the running ones need *probably* not
                everything
                they could; when memory runs out all the same, the newest ones give up their KV and wait again.
                """
            ),
            show.table(mo, lesson.retraction_table()),
        ]
    )


@app.cell
def _(mo):
    accepted = mo.ui.slider(1, 5, value=3, step=0.5, label="tokens per step", show_value=True)
    cost = mo.ui.slider(1, 3, value=1.5, step=0.1, label="a step costs so many times as much", show_value=True)
    mo.vstack(
        [
            mo.md("## Speculation\n\nA draft model proposes, the large one checks several tokens in one step."),
            accepted,
            cost,
        ]
    )
    return accepted, cost


@app.cell
def _(accepted, cost, lesson, mo):
    tpot = lesson.speculative_tpot(0.010, accepted.value, cost.value)
    mo.md(f"10 ms per token become **{1e3 * tpot:.1f} ms**: a gain as long as the step grows by less than it yields.")


@app.cell
def _(lesson, mo, show):
    mo.vstack(
        [
            mo.md("## The anchor machine\n\nWhat a decode step costs there, alone and together, with 20,000 tokens of context each:"),
            show.table(mo, lesson.anchor_table()),
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
