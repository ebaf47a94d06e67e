"""The lab's controls, and the scenario they describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvsim.errors import KvsimError

DTYPES = {"as the model has it": "auto", "bf16": "bf16", "fp8": "fp8_e4m3"}


@dataclass(frozen=True, slots=True)
class Choice:
    """The state of the controls. ``workload``: "experiment:NAME", "workload:NAME" or the path of a trace.

    ``ratio``: the host tier in units of the device pool; ``ram_gb``: host RAM for it in total (1e9 bytes), overrides
    the ratio
    if positive. ``rate``: times the workload's own rate. ``batch_cap`` 0: the engine's own. ``limit``: at most so many
    requests.
    """

    hardware: str = "8x-rtx-pro-6000"
    model: str = "kimi-k2.5-int4"
    command: str = ""
    workload: str = "experiment:hicache-ratio"
    trace_format: str = ""
    ratio: float = 4.0
    ram_gb: float = 0.0
    rate: float = 1.0
    dtype: str = "auto"
    batch_cap: int = 0
    limit: int = 300


def hardware_names() -> list[str]:
    """Return the machines to choose from."""
    from kvsim.bundled import names

    return names("hardware")


def model_names() -> list[str]:
    """Return the models to choose from."""
    from kvsim.bundled import names

    return names("models")


def workload_names() -> dict[str, str]:
    """Return the workloads to choose from: text to show -> value of ``Choice.workload``."""
    from kvsim.bundled import names

    found = {f"{name} (experiment)": f"experiment:{name}" for name in names("experiments")}
    return {**found, **{name: f"workload:{name}" for name in names("workloads")}}


def scenario_data(choice: Choice) -> dict[str, Any]:
    """Return the scenario of the controls as plain data. Raises ConfigError and UnknownName for what does not exist."""
    from kvsim.config.load import load_parts

    base = load_parts(choice.hardware, choice.model, choice.command.strip() or None, []).model_dump(mode="json", exclude_unset=True)
    base.update(_load(choice))
    engine = dict(base.get("engine") or {})
    if str(engine.get("rules", "sglang")).startswith("vllm"):
        engine["kv_offloading_size"] = _offload_gib(choice)
        if choice.batch_cap:
            engine["max_num_seqs"] = choice.batch_cap
    else:
        engine["hicache"] = {**(engine.get("hicache") or {}), **_host_tier(choice)}
        if choice.batch_cap:
            engine["max_running_requests"] = choice.batch_cap
    if choice.dtype != "auto":
        engine["kv_cache_dtype"] = choice.dtype
    return {**base, "engine": engine}


def start_of(hardware: str, model: str, command: str) -> Choice:
    """Return where the sliders start for a machine, a model and a launch command: at what the command says, else the
    defaults.
    """
    from kvsim.config.load import load_parts

    choice = Choice(hardware=hardware, model=model, command=command)
    try:
        engine = load_parts(hardware, model, command.strip() or None, []).model_dump(mode="json", exclude_unset=True)["engine"]
    except (KvsimError, KeyError):
        return choice
    cap = int(engine.get("max_running_requests") or engine.get("max_num_seqs") or 0)
    if not command.strip():
        return replace(choice, batch_cap=cap)
    ratio, ram_gb = _tier_of(choice, engine)
    return replace(choice, ratio=ratio, ram_gb=ram_gb, batch_cap=cap)


def _tier_of(choice: Choice, engine: dict[str, Any]) -> tuple[float, float]:
    """Return the host tier of a launch command as (ratio, GB in total): a size beats the ratio, as in the engines."""
    if str(engine.get("rules", "sglang")).startswith("vllm"):
        return 0.0, float(engine.get("kv_offloading_size") or 0.0) * 2**30 / 1e9
    hicache = engine.get("hicache") or {}
    ratio, size = float(hicache.get("ratio") or 0.0), float(hicache.get("size") or 0.0)
    if not (ratio and size):
        return ratio, 0.0
    try:
        return ratio, size * _ranks(choice)
    except KvsimError:
        return ratio, 0.0  # the page says what is wrong with the command


def _host_tier(choice: Choice) -> dict[str, Any]:
    """Return the hicache keys: a size per rank in GB if RAM was given, else the ratio."""
    if choice.ram_gb > 0:
        return {"size": choice.ram_gb / _ranks(choice), "ratio": max(choice.ratio, 1.0)}
    return {"ratio": choice.ratio, "size": 0}


def _offload_gib(choice: Choice) -> float:
    """Return vLLM's offload size (GiB over all ranks): the RAM given, else the ratio times the device pools."""
    if choice.ram_gb > 0:
        return choice.ram_gb * 1e9 / 2**30
    capacity = _capacity_of(choice)
    return float(choice.ratio * capacity.device_pool_bytes * capacity.ranks / 2**30)


def _ranks(choice: Choice) -> int:
    """Return the ranks of the engine the controls describe (each keeps its own host copy)."""
    return int(_capacity_of(choice).ranks)


def _capacity_of(choice: Choice) -> Any:
    """Return the capacity of the machine, model and command alone, without the sliders."""
    from kvsim.config.load import load_parts
    from kvsim.config.resolve import resolve

    return resolve(load_parts(choice.hardware, choice.model, choice.command.strip() or None, [])).capacity


def _load(choice: Choice) -> dict[str, Any]:
    """Return the workload, clients and SLO blocks of the controls, at the chosen rate and length."""
    import yaml

    from kvsim.bundled import find

    kind, _, name = choice.workload.partition(":")
    if kind == "experiment":
        data = yaml.safe_load(find("experiments", name, "experiment").read_text("utf-8"))
        blocks = {key: data[key] for key in ("workload", "clients", "slo") if key in data}
    elif kind == "workload":
        data = yaml.safe_load(find("workloads", name, "workload").read_text("utf-8"))
        blocks = {"workload": data.get("workload", data)}
    else:
        blocks = {"workload": {"kind": "trace", "trace": choice.workload}}
        if choice.trace_format:
            blocks["workload"]["format"] = choice.trace_format
    return {**blocks, "workload": _scaled(blocks["workload"], choice)}


def _scaled(workload: dict[str, Any], choice: Choice) -> dict[str, Any]:
    out = dict(workload)
    kind = out.get("kind", "trace")
    if kind == "trace":
        out["rate_scale"] = float(out.get("rate_scale", 1.0)) * choice.rate
        out["limit"] = min(int(out.get("limit") or choice.limit), choice.limit)
        return out
    for key in ("sessions_per_s", "rate_per_s"):
        if out.get(key):
            out[key] = float(out[key]) * choice.rate
    if kind == "poisson":
        out["requests"] = min(int(out.get("requests") or choice.limit), choice.limit)
    elif kind == "multi_turn":
        turns = out.get("turns", 5)
        mean = float(turns.get("mean") or 5) if isinstance(turns, dict) else float(turns)
        out["sessions"] = max(1, min(int(out.get("sessions", 100)), round(choice.limit / mean)))
    return out


def expected_requests(choice: Choice) -> int:
    """Return about how many requests the chosen load has: what decides whether it is simulated at once. 0 if it is not readable."""
    try:
        workload = _load(choice)["workload"]
    except KvsimError:
        return 0
    if workload.get("kind", "trace") == "multi_turn":
        turns = workload.get("turns", 5)
        return round(int(workload["sessions"]) * (float(turns.get("mean") or 5) if isinstance(turns, dict) else float(turns)))
    return int(workload.get("requests") or workload.get("limit") or choice.limit)
