"""Hardware profiles: a card, how many of them, and the host around them. SI units; every number has a source in its file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from kvsim import bundled
from kvsim.config.faults import faults_of
from kvsim.config.schema.types import Block, Bytes, Count, Name, PositiveCount, PositiveNumber, Rate, Share
from kvsim.config.yamlfile import parse_yaml, read_text
from kvsim.errors import ConfigError, UnknownName

MIB = 2**20


class Pcie(Block):
    """One GPU's PCIe link: ``h2d``, ``d2h`` what large DMA copies reach, ``duplex`` what remains of each when both directions are busy."""

    generation: Annotated[Count, Field(ge=3, le=6)] = 5
    lanes: PositiveCount = 16
    h2d: Rate = 55e9
    d2h: Rate = 56e9
    duplex: Share = 0.93


class Flops(Block):
    """Peak dense FLOP/s by type."""

    bf16: PositiveNumber
    fp8: PositiveNumber


class CardProfile(Block):
    """One GPU. ``memory_mib``: total as nvidia-smi prints it; ``kernels``: key of measured coefficients, None: scaled by roofline."""

    name: Name
    kernels: Name | None = None
    architecture: Name
    memory_mib: PositiveCount
    mem_bw: Rate
    flops: Flops
    l2_bytes: PositiveNumber
    pcie: Pcie = Field(default={}, validate_default=True)
    nvlink: bool = False
    source: Name = ""

    @property
    def memory_bytes(self) -> int:
        """Total memory in bytes."""
        return self.memory_mib * MIB


class Transfer(Block):
    """How KV is copied: SGLang's ``kernel`` mode by default; per GPU."""

    mode: Literal["kernel", "batch", "direct", "page_contig"] = "kernel"
    kernel_h2d: Rate = 30e9
    kernel_d2h: Rate = 28e9
    kernel_d2h_page_first: Rate = 20e9
    interference: PositiveNumber = 0.05


def _ram(value: object) -> object:
    return None if value == "unlimited" else value


class HardwareProfile(Block):
    """A machine. ``host_ram`` None: unlimited (studies that do not ask whether it fits). ``pinnable_fraction``: of installed RAM.

    ``host_ram_free``: what is free before the engine starts (default: all of it). ``topology``: direct, uplink2, uplink4 (GPUs per x16 uplink).
    """

    name: Name = ""
    card: CardProfile
    gpus: PositiveCount
    topology: Literal["direct", "uplink2", "uplink4"] = "direct"
    sockets: PositiveCount = 1
    host_ram: Annotated[Bytes | None, BeforeValidator(_ram)] = None
    host_ram_free: Bytes | None = None
    pinnable_fraction: Share = 1.0
    cgroup_limit: Bytes | None = None
    uplink_bw: Rate = 57e9
    root_bw: Rate | None = None
    dram_bw_per_socket: Rate | None = None
    allreduce: Name = "aic_host"
    transfer: Transfer = Field(default={}, validate_default=True)
    assumptions: list[Name] = Field(default_factory=list)

    @property
    def usable_host_bytes(self) -> int | None:
        """Host RAM that pinned pools may use before the engine's own reserve: the least of free, pinnable and cgroup limits."""
        if self.host_ram is None:
            return None
        limits = [self.host_ram if self.host_ram_free is None else self.host_ram_free, int(self.host_ram * self.pinnable_fraction)]
        if self.cgroup_limit is not None:
            limits.append(self.cgroup_limit)
        return min(limits)


def load_hardware(given: str | dict[str, Any]) -> HardwareProfile:
    """Return the profile of a name, a path, ``<N>x-<card>``, or an inline mapping (``base: NAME`` plus changes)."""
    if isinstance(given, dict):
        changes = dict(given)
        base = changes.pop("base", None)
        data, origin, lines = _data_of(str(base)) if base is not None else ({}, "hardware", {})
        return _profile({**data, **changes}, origin, lines, str(base or changes.get("name") or "inline"))
    data, origin, lines = _data_of(given)
    return _profile(data, origin, lines, given)


def _data_of(name: str) -> tuple[dict[str, Any], str, dict[Any, int]]:
    built = re.fullmatch(r"(\d{1,4})x-(.+)", name)
    if name not in bundled.names("hardware") and built and built[2] in card_names():
        return {"card": built[2], "gpus": int(built[1]), "assumptions": ["topology: direct", "host RAM not given: unlimited"]}, name, {}
    try:
        path = bundled.find("hardware", name, "hardware profile")
    except UnknownName:
        raise UnknownName("hardware profile", name, [*bundled.names("hardware"), *(f"<N>x-{card}" for card in card_names())]) from None
    data, lines = parse_yaml(read_text(path, "hardware profile"), str(path))
    return data, str(path), dict(lines)


def card_names() -> list[str]:
    """Return the names of the bundled cards."""
    return sorted(path.stem for path in (bundled.folder("hardware") / "cards").glob("*.yaml"))


def load_card(name: str) -> dict[str, Any]:
    """Return the data of a bundled card or of a card file."""
    path = bundled.folder("hardware") / "cards" / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
        if not path.is_file():
            raise UnknownName("card", name, card_names())
    data, _ = parse_yaml(read_text(path, "card"), str(path))
    return data


def _profile(data: dict[str, Any], origin: str, lines: Any, name: str) -> HardwareProfile:
    card = data.get("card")
    if isinstance(card, str):
        data = {**data, "card": load_card(card)}
    elif isinstance(card, dict) and "base" in card:
        data = {**data, "card": {**load_card(str(card["base"])), **{key: value for key, value in card.items() if key != "base"}}}
    data.setdefault("name", name)
    try:
        return HardwareProfile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(faults_of(error, data, lines, origin, HardwareProfile)) from None
