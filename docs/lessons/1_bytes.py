"""Lesson 1. Where do the bytes go? Run with `marimo run docs/lessons/1_bytes.py`, or as a script."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="1. Where do the bytes go?")


@app.cell
def _():
    import marimo as mo

    from kvsim.report import memory_figures
    from kvsim.web import show
    from kvsim.web.lessons import bytes as lesson

    return lesson, memory_figures, mo, show


@app.cell
def _(mo):
    mo.md(
        """
        # 1. Where do the bytes go?

        A language model that has read a text keeps, for each token and each layer, a *key* and a *value*: the KV cache.
        As long as it is there, the next word costs one step; without it the whole text has to be read again.
        So the first question about any server is: **how many tokens can it keep?**

        $$ \\text{bytes per token} = \\text{layers} \\times 2 \\times \\text{KV heads} \\times \\text{head size} \\times
        \\text{bytes per number} $$

        $$ \\text{tokens on the device} = \\frac{\\text{fraction} \\times \\text{card} - \\text{weights}}{\\text{bytes
        per token}} $$

        Start with a toy server whose numbers come out even. Move the sliders.
        """
    )


@app.cell
def _(mo):
    layers = mo.ui.slider(5, 40, value=10, step=5, label="layers", show_value=True)
    kv_heads = mo.ui.slider(1, 10, value=5, label="KV heads per rank", show_value=True)
    bytes_each = mo.ui.dropdown({"fp8: 1 byte": 1, "bf16: 2 bytes": 2}, value="bf16: 2 bytes", label="number format")
    ratio = mo.ui.slider(0, 8, value=2, step=0.5, label="host tier, times the device pool", show_value=True)
    mo.vstack([layers, kv_heads, bytes_each, ratio])
    return bytes_each, kv_heads, layers, ratio


@app.cell
def _(bytes_each, kv_heads, layers, lesson, mo, ratio, show):
    toy = lesson.Toy(layers=layers.value, kv_heads=kv_heads.value, bytes_each=bytes_each.value, ratio=ratio.value)
    mo.vstack([mo.md("## The toy server"), show.table(mo, lesson.toy_table(toy))])
    return (toy,)


@app.cell
def _(lesson, memory_figures, mo, show):
    capacity = lesson.anchor_capacity()
    mo.vstack(
        [
            mo.md("## The anchor machine: Kimi-K2.5 INT4 on 8 RTX PRO 6000\n\nThe same arithmetic with the real numbers, line by line."),
            show.figure(mo, memory_figures.card(capacity)),
            show.figure(mo, memory_figures.host(capacity)),
            mo.accordion({"Every line of the arithmetic": show.table(mo, memory_figures.arithmetic(capacity))}),
        ]
    )
    return (capacity,)


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
