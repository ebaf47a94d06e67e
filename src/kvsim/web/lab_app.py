"""The page of `kvsim lab`: controls, memory, latency, curve, advice, a small world to step through, downloads."""

# mypy: disable-error-code="no-untyped-def"

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="kvsim lab")


@app.cell
def _():
    import tempfile

    import marimo as mo

    from kvsim.errors import KvsimError
    from kvsim.web import lab, show
    from kvsim.web.job import Job
    from kvsim.web.lessons import prefix
    from kvsim.web.world import Settings, build_world

    folder = tempfile.TemporaryDirectory(prefix="kvsim-lab-")
    return Job, KvsimError, Settings, build_world, folder, lab, mo, prefix, show


@app.cell
def _(mo):
    mo.md(
        """
        # kvsim lab: what happens to my users if I change the memory?

        Paste a launch command or choose a machine, choose a load, move a setting. Small loads are simulated at once.
        Numbers are predictions of a model; what is not modelled is listed in every report.
        """
    )


@app.cell
def _(lab, mo):
    machines, models, loads = lab.hardware_names(), lab.model_names(), lab.workload_names()
    first = lab.Choice()
    hardware = mo.ui.dropdown(machines, value=first.hardware, label="machine")
    model = mo.ui.dropdown(models, value=first.model, label="model")
    workload = mo.ui.dropdown(loads, value=next(k for k, v in loads.items() if v == first.workload), label="load")
    command = mo.ui.text_area(
        label="launch command (SGLang or vLLM; optional; the sliders then start at what it says)",
        rows=2,
        full_width=True,
        debounce=True,
        placeholder="python -m sglang.launch_server --tp 8 --enable-hierarchical-cache --hicache-ratio 2 ...",
    )
    upload = mo.ui.file(label="or a trace or log of your own", kind="button")
    mo.vstack([mo.hstack([hardware, model, workload, upload], justify="start", gap=1.5, wrap=True), command])
    return command, hardware, model, upload, workload


@app.cell
def _(command, hardware, lab, mo, model):
    start = lab.start_of(hardware.value, model.value, command.value)
    common = {"show_value": True, "debounce": True}
    ratio = mo.ui.slider(0, max(16, start.ratio), value=start.ratio, step=0.5, label="hicache ratio", **common)
    ram = mo.ui.slider(
        0, max(2000, start.ram_gb), value=start.ram_gb, step=50, label="or host RAM for the cache, GB in total (0: use the ratio)", **common
    )
    rate = mo.ui.slider(0.1, 5, value=1.0, step=0.1, label="rate, times the load's own", **common)
    dtype = mo.ui.dropdown(lab.DTYPES, value=next(iter(lab.DTYPES)), label="KV number format")
    cap = mo.ui.slider(0, max(256, start.batch_cap), value=start.batch_cap, step=1, label="batch cap (0: the engine's own)", **common)
    limit = mo.ui.slider(steps=[100, 300, 1000, 3000, 10000, 100000], value=300, label="at most so many requests", **common)
    mo.vstack(
        [
            mo.hstack([ratio, ram], justify="start", gap=2, wrap=True),
            mo.hstack([rate, cap], justify="start", gap=2, wrap=True),
            mo.hstack([dtype, limit], justify="start", gap=2, wrap=True),
        ]
    )
    return cap, dtype, limit, ram, rate, ratio


@app.cell
def _(KvsimError, cap, command, dtype, folder, hardware, lab, limit, model, mo, ram, rate, ratio, show, upload, workload):
    load, upload_problem = workload.value, None
    if upload.value:
        try:
            load = lab.save_trace(folder.name, upload.value[0].name, upload.value[0].contents)
        except KvsimError as error:
            upload_problem = mo.callout(mo.md(show.text(str(error))), kind="danger")
    choice = lab.Choice(
        hardware=hardware.value,
        model=model.value,
        command=command.value,
        workload=load,
        ratio=ratio.value,
        ram_gb=ram.value,
        rate=rate.value,
        dtype=dtype.value,
        batch_cap=cap.value,
        limit=limit.value,
    )
    prepared = lab.resolve_choice(choice)
    small = lab.expected_requests(choice) <= lab.SMALL
    upload_problem
    return choice, prepared, small


@app.cell
def _(mo, small):
    start_button = mo.ui.run_button(label="simulate this large load")
    curve_button = mo.ui.run_button(label="what does each ratio buy? (5 simulations)")
    mo.hstack([curve_button] if small else [start_button, curve_button], justify="start")
    return curve_button, start_button


@app.cell
def _(Job, lab, mo, prepared, small, start_button):
    # A small load is simulated here; a large one in a thread, so that it can be watched and stopped.
    wanted = not prepared.problem and (small or start_button.value)
    job = None if small or not wanted else Job(lambda progress: lab.answer_with_curve(prepared, progress))
    instant = lab.simulate_answer(prepared) if small else None
    watch = mo.ui.refresh(options=["1s"], default_interval="1s") if job is not None else None
    stop = mo.ui.button(label="stop", on_click=lambda _: job.cancel() if job is not None else None)
    return instant, job, stop, watch


@app.cell
def _(instant, job, lab, mo, prepared, show, stop, watch):
    if watch is not None:
        watch.value
    if instant is not None:
        answer, status = instant, None
    elif job is None:
        answer, status = (
            prepared,
            mo.md("*A large load: press the button to simulate it.*") if not prepared.problem else None,
        )
    elif job.state == "running":
        answer, status = (
            prepared,
            mo.hstack([mo.md(f"simulating: {job.done:,} requests ended"), stop, watch], justify="start", gap=1),
        )
    elif job.state == "done":
        answer, status = job.result, None
    else:
        answer, status = prepared, mo.md(f"**{show.text(f'{job.state} {job.error}'.strip())}**")
    kind = (
        "danger"
        if answer.problem
        else ("neutral" if not answer.summary else "success" if not answer.summary["slo"] or answer.summary["slo"]["met"] else "warn")
    )
    mo.vstack([item for item in (mo.callout(mo.md(f"**{show.text(lab.headline(answer))}**"), kind=kind), status) if item is not None])
    return (answer,)


@app.cell
def _(answer, lab, mo, show):
    found = lab.figures_of(answer, lab.FIRST)
    said = lab.advice(answer)
    words = mo.md("\n".join(f"- {show.text(line)}" for line in said) or "*Nothing simulated yet.*")
    over_time = mo.accordion({"Over time": lambda: show.figures(mo, lab.figures_of(answer, lab.LATER), lab.LATER)}, lazy=True)
    parts = [mo.md("## Advice"), words, mo.md("## Memory"), show.figures(mo, found, lab.FIRST[:2])]
    mo.vstack([*parts, mo.md("## Latency"), show.figures(mo, found, lab.FIRST[2:]), over_time])


@app.cell
def _(answer, lab, mo, prepared, show, small):
    # The curve of a large load is made together with its simulation, in the thread: here it would hold up the page.
    every_size = lab.hit_curve_figure(prepared) if small or answer.summary else None
    mo.vstack([mo.md("## Curve"), show.figure(mo, every_size)] if every_size is not None else [])


@app.cell
def _(choice, curve_button, lab, mo, show):
    curve = show.figure(mo, lab.ratio_figure(lab.ratio_curve(choice))) if curve_button.value else mo.md("")
    curve


@app.cell
def _(answer, lab, mo, show):
    files = [mo.download(data=content, filename=name, label=label) for label, (name, content) in lab.downloads(answer).items()]
    lines = [mo.md("## Take it home"), mo.hstack(files, justify="start")] if files else []
    if answer.resolved is not None:
        lines += [mo.md("The same from the command line: `kvsim run scenario.yaml --report report.html`. The server, to launch:")]
        lines += [show.code(mo, lab.launch_command(answer))]
    mo.vstack(lines)


@app.cell
def _(mo, prefix):
    script = mo.ui.text_area(
        value=prefix.TIERS.strip(),
        label="requests: seconds, pieces (name:tokens; @1 is the answer of request 1), output tokens",
        rows=7,
        full_width=True,
    )
    device = mo.ui.slider(200, 4000, value=900, step=50, label="device tokens", show_value=True, debounce=True)
    host = mo.ui.slider(0, 8000, value=1500, step=50, label="host tokens", show_value=True, debounce=True)
    page = mo.ui.dropdown({"1": 1, "16": 16, "64": 64}, value="1", label="page size")
    policy = mo.ui.dropdown(["write_through", "write_through_selective", "write_back"], value="write_through", label="write policy")
    mo.vstack(
        [
            mo.md(
                "## A small world, step by step\n\nThe real rules of SGLang 0.5.9 with round "
                "numbers: who enters, what the tree holds on device and host, what leaves."
            ),
            script,
            mo.hstack([device, host, page, policy], justify="start", gap=1.5, wrap=True),
        ]
    )
    return device, host, page, policy, script


@app.cell
def _(KvsimError, Settings, build_world, device, host, mo, page, policy, prefix, script, show):
    try:
        settings = Settings(device_tokens=device.value, host_tokens=host.value, page_size=page.value, write_policy=policy.value)
        world, trouble = build_world(script.value, settings), None
    except KvsimError as problem:
        world, trouble = build_world(prefix.TIERS), mo.callout(mo.md(show.text(str(problem))), kind="danger")
    get_moment, set_moment = mo.state(0)
    trouble
    return get_moment, set_moment, world


@app.cell
def _(get_moment, mo, set_moment, show, world):
    steps = show.stepper(mo, get_moment, set_moment, len(world.frames) - 1)
    show.row(mo, steps)
    return (steps,)


@app.cell
def _(get_moment, mo, show, world):
    show.moment(mo, world.frame(get_moment()), world)


if __name__ == "__main__":
    app.run()
