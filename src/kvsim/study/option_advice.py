"""The sentence under the options: what to do, why (the binding resource), and how sure that is. Computed from paired results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.measure.binding import WORDS
from kvsim.units import gb

if TYPE_CHECKING:
    from kvsim.study.options import Options, Row

GAIN = 0.005  # a smaller change of attainment is not worth saying


def options_advice(options: Options) -> str:
    """Return the advice in two or three sentences."""
    base = options.base
    bound = base.summaries[0]["binding"]["resource"]
    reason = f"Binding as is: {WORDS[bound]}."
    every = helpful(options)
    better = [row for row in every if _cost(row)[0] == 1] or every
    if not better:
        return f"{reason} {_nothing(options)} {_loads(options)}".strip()
    best = better[0]
    close = [row for row in better[1:] if not _tells(options, best, row)]
    chosen = min([best, *close], key=lambda row: (_cost(row), options.rows.index(row)))
    others = [row for row in [best, *close] if row is not chosen]
    gain = options.difference(chosen, "good")
    assert gain is not None
    sure = f"± {100 * (gain.half_width or 0):.1f}" if gain.half_width is not None else "(interval unknown)"
    text = (
        f"{reason} {_title(chosen)} raises the share of requests within the SLO by {100 * gain.mean:.1f} {sure} points to "
        f"{100 * _share(chosen):.1f} %{_price(chosen, base)}."
    )
    if others:
        text += f" At this load it cannot be told from {_names(others)}{_cheaper(chosen, others)}."
    text += "".join(f" {_title(row)}: {100 * _share(row):.1f} %." for row in every if row not in better)
    wanted = options.base.summaries[0]["slo"]["attainment_wanted"]
    if all(_share(row) < wanted for row in every):
        text += f" No option reaches the wanted {100 * wanted:g} %."
    return f"{text} {_loads(options)}".strip()


def helpful(options: Options) -> list[Row]:
    """Return the options whose attainment is clearly above "as is" (their paired 95 % interval excludes zero), best first."""
    out = []
    for row in options.rows[1:]:
        difference = options.difference(row, "good") if row.summaries else None
        if difference is not None and difference.clear and difference.mean > GAIN:
            out.append((difference.mean, row))
    return [row for _, row in sorted(out, key=lambda pair: -pair[0])]


def _tells(options: Options, best: Row, row: Row) -> bool:
    difference = options.difference(best, "good", other=row)
    return difference is not None and difference.clear and difference.mean > GAIN


def _share(row: Row) -> float:
    shares = [summary["slo"]["attainment"] or 0.0 for summary in row.summaries]
    return sum(shares) / len(shares)


def _cost(row: Row) -> tuple[int, int]:
    machines = next((int(s.partition("=")[2]) for s in row.option.sets if s.startswith("replicas=")), 1)
    return machines, int(row.capacity["host_bytes_total"])


def _price(row: Row, base: Row) -> str:
    machines, ram = _cost(row)
    if machines > 1:
        return f", for {machines} times the machines"
    unknown = "; what it costs in speed and in the quality of answers is unknown here" if "fp8" in row.option.name else ""
    more = ram - int(base.capacity["host_bytes_total"])
    ram_price = (
        f", for {gb(more)} more host RAM in total"
        if more > 0
        else f", with {gb(-more)} less host RAM"
        if more < 0
        else ", at no cost in RAM"
    )
    return ram_price + unknown


def _cheaper(chosen: Row, others: list[Row]) -> str:
    return (
        ", which costs more"
        if len(others) == 1 and _cost(others[0]) > _cost(chosen)
        else ", which cost more"
        if (all(_cost(other) > _cost(chosen) for other in others))
        else ""
    )


def _nothing(options: Options) -> str:
    base = options.base
    wanted, share = base.summaries[0]["slo"]["attainment_wanted"], _share(base)
    if share >= wanted:
        return f"As is, {100 * share:.1f} % of requests meet the SLO ({100 * wanted:g} % wanted): at this load no option is needed."
    return f"No option clearly raises the share of requests within the SLO ({100 * share:.1f} % as is, {100 * wanted:g} % wanted)."


def _loads(options: Options) -> str:
    """Return what the searched loads say: who carries clearly more (brackets that do not touch)."""
    base = options.base.load
    if base is None:
        return ""
    name = options.load_key.rpartition(".")[2]
    if all(row.load is None or (row.load["meets"] is None and not row.load["unsure"]) for row in options.rows):
        return (
            f"On the sample ({options.sample}) nothing meets the SLO even at {name} {base['low']:g}: it is out of reach for this workload "
            "(single requests take longer), whatever the memory."
        )
    own = f"largest {name} within the SLO as is: {_bracket(base)}"
    ahead = [
        row
        for row in options.rows[1:]
        if row.load and row.load["meets"] is not None and base["fails"] is not None and row.load["meets"] >= base["fails"]
    ]
    if not ahead:
        return f"On the sample ({options.sample}) the {own}; no option carries clearly more."
    ahead.sort(key=lambda row: -(row.load or {})["meets"])
    told = "; ".join(f"{_title(row)} {_bracket(row.load or {})}" for row in ahead[:3])
    return f"On the sample ({options.sample}) the {own}; clearly more: {told}."


def _bracket(load: dict[str, float | None]) -> str:
    low, high = load["meets"], load["fails"]
    if low is None and load["unsure"]:
        return "not decided at any load tried" if high is None else f"below {high:g}, not decided where"
    if low is None:
        return f"below {load['low']:g}"
    return f"at least {low:g}" if high is None else f"{low:g} to {high:g}"


def _title(row: Row) -> str:
    return row.option.name + (f" ({row.option.remark})" if row.option.remark else "")


def _names(rows: list[Row]) -> str:
    return ", ".join(row.option.name for row in rows)
