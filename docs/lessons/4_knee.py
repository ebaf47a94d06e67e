"""Lesson 4. Why the knee is sharp. Run with `marimo run docs/lessons/4_knee.py`, or as a script."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="4. Why the knee is sharp")


@app.cell
def _():
    import marimo as mo

    from kvsim.web import show
    from kvsim.web.lessons import knee as lesson

    return lesson, mo, show


@app.cell
def _(mo):
    mo.md(
        """
        # 4. Why the knee is sharp

        Five users with 200 tokens each come back one after the other. The device keeps 500 tokens; how much host RAM
        must be
        added before anybody finds his text again? One would think: the more, the better. It is not so. **LRU** gives up
        what
        was not used for the longest time, and that is exactly who comes next. Just below the *working set* nobody is
        served;
        just above it everybody is.
        """
    )


@app.cell
def _(mo):
    host = mo.ui.slider(0, 1500, value=400, step=100, label="host tier (tokens)", show_value=True)
    scan = mo.ui.checkbox(label="somebody sends 450 tokens once per round that never come back")
    eviction = mo.ui.dropdown(["lru", "lfu", "fifo", "mru"], value="lru", label="what is given up first")
    mo.vstack([host, scan, eviction])
    return eviction, host, scan


@app.cell
def _(eviction, host, lesson, mo, scan, show):
    made = lesson.world(host.value, scan=450 if scan.value else 0, eviction=eviction.value)
    mo.vstack([mo.md(f"## Hit rate here: {100 * lesson.hit_rate(made):.1f} %"), lesson.knee_chart(host.value, eviction.value)])
    return (made,)


@app.cell
def _(lesson, mo):
    get_moment, set_moment = mo.state(0)
    mo.md("## Step through it\n\nWatch whose text leaves, and who comes next.")
    return get_moment, set_moment


@app.cell
def _(get_moment, made, mo, set_moment, show):
    steps = show.stepper(mo, get_moment, set_moment, len(made.frames) - 1)
    show.row(mo, steps)
    return (steps,)


@app.cell
def _(get_moment, made, mo, show):
    show.moment(mo, made.frame(get_moment()), made)


@app.cell
def _(lesson, mo, show):
    mo.vstack(
        [
            mo.md(
                """
                ## The anchor machine

                `--hicache-ratio` is the size of the host tier in units of the device pool. Whether a ratio helps
                depends on where
                the working set lies: it fits on the device (no gain), it lies between the tiers (the knee), or beyond
                both (flat).
                What each ratio costs there:
                """
            ),
            show.table(mo, lesson.anchor_table()),
            mo.md("How the hit rate goes with it for a workload is what `kvsim curve` and `kvsim sweep hicache-ratio` answer."),
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
