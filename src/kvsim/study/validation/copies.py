"""S08: copies over PCIe, alone, together and in both directions."""

from __future__ import annotations

from pathlib import Path

from kvsim.cost.modes import KERNEL_CURVE_D2H, KERNEL_CURVE_H2D, dma_rate, on_curve
from kvsim.cost.topology import Shared, Topology
from kvsim.study.validation.core import Outcome, Row, Scenario, read_table, within

EIGHT = tuple(range(8))


def rate(topology: Topology, gpus: tuple[int, ...], way: str = "h2d") -> float:
    """Return each GPU's GB/s when ``gpus`` copy one way at once."""
    loading, storing = topology.rates(gpus if way == "h2d" else (), gpus if way == "d2h" else ())
    return (loading if way == "h2d" else storing)[0] / 1e9


def switch_host(roots: int) -> Topology:
    """Return eight GPUs behind two Gen5 x16 switch uplinks on one or two root ports (57 GB/s an uplink; 73.1 GB/s one quadrant)."""
    uplinks = (Shared("uplink0", (0, 1, 2, 3), 57e9), Shared("uplink1", (4, 5, 6, 7), 57e9))
    root = (Shared("root", EIGHT, 73.1e9),) if roots == 1 else ()
    return Topology(8, 55e9, 56e9, (0.93, 0.93), uplinks + root)


def judge_s08(folder: Path) -> Outcome:
    """Judge the aggregate rates on one and two roots, and the copy curve by block size."""
    lines = read_table(folder, "C2_rtxpro6000_pcie_open.csv")
    name = "C2_rtxpro6000_pcie_open"
    rows = [
        Row(name, "0", "H2D_GB_s", "GB/s", _middle(lines[0]["H2D_GB_s"]), rate(switch_host(2), (0,))),
        Row(name, "1", "H2D_GB_s", "GB/s", float(lines[1]["H2D_GB_s"]), 8 * rate(switch_host(2), EIGHT)),
        Row(name, "1", "D2H_GB_s", "GB/s", float(lines[1]["D2H_GB_s"]), 8 * rate(switch_host(2), EIGHT, "d2h")),
        Row(name, "4", "H2D_GB_s", "GB/s", float(lines[4]["H2D_GB_s"]), 8 * rate(switch_host(1), EIGHT)),
        Row(name, "4", "D2H_GB_s", "GB/s", float(lines[4]["D2H_GB_s"]), 8 * rate(switch_host(1), EIGHT, "d2h")),
    ]
    curve = []
    for number, line in enumerate(read_table(folder, "C1_vllm_h100_transfer_curve.csv")):
        size, mode = float(line["block_kB"]) * 1e3, line["mode"]
        table = KERNEL_CURVE_H2D if "H2D" in mode else KERNEL_CURVE_D2H
        value = dma_rate(size) if "DMA" in mode else on_curve(table, size) / 1.0
        curve.append(Row("C1_vllm_h100_transfer_curve", str(number), "GB_s", "GB/s", float(line["GB_s"]), value / 1e9, scored=False))
    return Outcome(
        rows + curve,
        [within("RTX PRO 6000 rates, worst", rows, 1.0, 10)],
        "uplink and root rates on these open rows; the curve's constants on the curve itself",
    )


def _middle(text: str) -> float:
    low, _, high = text.partition("-")
    return (float(low) + float(high or low)) / 2


#: Single-direction link rates by generation, and what H2D keeps under simultaneous D2H on hosts of that age.
GEN5, GEN4 = 55.0, 24.8
KEPT = {"5090": 0.93, "4090": 0.5}


def predict_s08(folder: Path) -> list[Row]:
    """Predict the other rigs from the link rates of their generation."""
    rows = []
    for number, line in enumerate(read_table(folder, "C2_pcie_held_INPUTS_ONLY.csv")):
        case = line["case"]
        base = GEN5 if "5090" in case else GEN4 if "4090" in case else None
        if base is None:
            rows.append(
                Row(
                    "C2_pcie_held", str(number), "H2D_GB_s", "GB/s", None, None, reason="SM copies by size were not calibrated on this card"
                )
            )
            continue
        card = "5090" if "5090" in case else "4090"
        value = base * (KEPT[card] if "bidirectional" in case else 1.0)
        spread = 0.3 if "bidirectional" in case else 0.08
        rows.append(Row("C2_pcie_held", str(number), "H2D_GB_s", "GB/s", None, value, value * (1 - spread), value * (1 + spread)))
    return rows


def scenarios() -> list[Scenario]:
    """Return S08."""
    return [Scenario("S08", "PCIe copies: curve, sharing, both directions", "10 %", "none published", judge_s08, predict_s08)]
