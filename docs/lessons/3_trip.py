"""Lesson 3. When is RAM worth the trip? Run with `marimo run docs/lessons/3_trip.py`, or as a script."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="3. When is RAM worth the trip?")


@app.cell
def _():
    import marimo as mo

    from kvsim.web import show
    from kvsim.web.lessons import trip as lesson

    return lesson, mo, show


@app.cell
def _(mo):
    mo.md(
        """
        # 3. When is RAM worth the trip?

        A prefix that left the GPU can be **computed again**, or **loaded back** from host RAM if a copy is there.
        Computing costs
        time per token. Loading costs a fixed time (starting the copy, waiting for a step) and time per token. So short
        prefixes
        are cheaper to compute, long ones to load, and in between lies the **break-even length**:

        $$ n^* = \\frac{\\text{fixed time of a copy}}{1/\\text{prefill rate} - 1/\\text{link rate}} $$
        """
    )


@app.cell
def _(mo):
    prefill = mo.ui.slider(500, 4000, value=1000, step=500, label="prefill (tokens/s)", show_value=True)
    link = mo.ui.slider(1000, 16000, value=4000, step=1000, label="link (tokens/s)", show_value=True)
    setup = mo.ui.slider(0, 1, value=0.3, step=0.1, label="fixed time of a copy (s)", show_value=True)
    mo.vstack([prefill, link, setup])
    return link, prefill, setup


@app.cell
def _(lesson, link, mo, prefill, setup, show):
    toy = lesson.ToyTrip(prefill.value, link.value, setup.value)
    mo.vstack([mo.md(f"## The toy server: {show.text(lesson.sentence(toy))}"), lesson.trip_chart(toy)])
    return (toy,)


@app.cell
def _(mo):
    rate = mo.ui.slider(0.4, 3.9, value=2.0, step=0.1, label="copies per second (each 1,000 tokens, 0.25 s)", show_value=True)
    mo.vstack(
        [
            mo.md(
                """
                ## The link as a queue

                Copies share the link. If they come at random (Poisson) and each takes the time *s*, a copy waits on
                average

                $$ W = \\frac{\\rho\\, s}{2 (1 - \\rho)}, \\qquad \\rho = \\text{rate} \\times s $$

                for those in front of it (M/D/1, Pollaczek and Khinchine). At half load that is little; near full load
                it has no end.
                """
            ),
            rate,
        ]
    )
    return (rate,)


@app.cell
def _(lesson, mo, rate, show):
    mo.vstack([mo.md(show.text(lesson.wait_sentence(rate.value))), lesson.wait_chart(rate.value)])


@app.cell
def _(lesson, mo, show):
    mo.vstack(
        [
            mo.md("## The anchor machine\n\nThe same comparison with its links and its prefill, nothing else running:"),
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
