"""What the simulation leaves out: printed in every report, and the list behind docs/background/model.md."""

from __future__ import annotations

#: (what, what that means for a reader of the numbers). docs/background/model.md carries the same sentences.
NOT_MODELLED: tuple[tuple[str, str], ...] = (
    ("token values", "Lengths and shared content are inputs; no model is run and no text is produced."),
    (
        "CPU side of the server",
        "Tokenising, HTTP, detokenising and the scheduler's own CPU time enter as one constant per step, if at all.",
    ),
    (
        "noise of a real machine",
        "Step times are deterministic: no clock throttling, no jitter, no neighbours on the PCIe switch that the topology does not name.",
    ),
    (
        "storage tier",
        "HiCache's third tier (L3: files, Mooncake, 3FS) is absent; a prefix that leaves host RAM is computed again.",
    ),
    ("prefill-decode disaggregation", "Both phases run on the same GPUs."),
    (
        "fragmentation beyond pages",
        "Slots are counted in whole pages; allocator internals below that are not simulated.",
    ),
    ("multimodal inputs", "Images and audio count only through the tokens of the trace."),
    ("failures", "GPUs, links and clients' connections do not fail; clients may time out."),
)
