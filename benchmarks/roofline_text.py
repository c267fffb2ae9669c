"""The report of roofline.py as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# shares of less are left out
LEAST_SHARE = 0.02


def render(found: Mapping[str, Any]) -> str:
    """Return a report for a reader."""
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    s = found["settings"]
    yield (
        f"release geometry, {s['layers']} layers, {s['format']} in groups of {s['group']}: "
        f"{found['weights_gb']:.2f} GB of weights; {s['depth']} tokens before the pass"
    )
    for name, reason in found["not_counted"].items():
        yield f"{name} was not counted: {reason}"
    for card in found["cards"]:
        if not card["fits"]:
            yield f"{card['name']}: the weights exceed its {card['memory_gb']} GB"
    yield ""
    yield from _passes(found)
    yield ""
    yield from _tokens(found)
    if found["predictions"]:
        yield ""
        yield from _times(found)
        yield ""
        yield from _decoding(found["decoding"])


def _passes(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'GB a pass':34s} {'experts':>8s} {'weights':>8s} {'KV':>6s} {'state':>6s} " + (
        f"{'sum':>7s} {'of min.':>7s} {'rows':>7s} {'launches':>8s}"
    )
    for name, least in found["minimum"].items():
        yield f"{name + ', minimum':34s} {_moved(least)}"
        for engine, passes in found["engines"].items():
            row = passes[name]
            yield (
                f"  {engine:32s} {_moved(row['gb'])} {row['over_minimum']:7.3f} "
                f"{row['gb']['activations']:7.3f} {row['launches']:8d}"
            )


def _moved(gb: Mapping[str, float]) -> str:
    return (
        f"{gb['experts']:8.3f} {gb['weights']:8.3f} {gb['kv']:6.3f} {gb['state']:6.3f} "
        f"{gb['cold']:7.3f}"
    )


def _tokens(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'a token':40s} {'GB':>8s} {'minimum':>8s} {'launches':>8s}"
    for engine, rows in found["per_token"].items():
        for row in rows:
            name = f"{engine} {row['mode']}"
            if row["mode"] == "diffusion":
                name += f", {row['experts']} experts, {row['tokens_a_pass']} a pass"
            yield f"{name:40s} {row['gb']:8.3f} {row['minimum_gb']:8.3f} {row['launches']:8.0f}"


def _times(found: Mapping[str, Any]) -> Iterator[str]:
    a = found["assumed"]
    yield (
        f"predicted, not measured: {a['bandwidth_share']:.0%} of the bandwidth, "
        f"{a['arithmetic_share']:.0%} of the arithmetic rate; a launch costs "
        f"{a['recorded_us']:g} us recorded, else {a['triton_us']:g} us (triton) or "
        f"{a['opencl_us']:g} us (opencl)"
    )
    yield f"{'card, engine, launches':34s} {'ms':>7s} {'bound':>7s}  pass: limit; shares"
    for p in found["predictions"]:
        # a commit takes about as long as its preview; the JSON has it
        if p["pass"].startswith("commit"):
            continue
        shares = [f"{name} {n:.0%}" for name, n in p["share"].items() if n > LEAST_SHARE]
        name = f"{p['card']} {p['engine']} {p['launched']}"
        yield (
            f"{name:34s} {p['ms']:7.2f} {p['bound_ms']:7.2f}  {p['pass']}: {p['limit']}; "
            f"{', '.join(shares)}"
        )


def _decoding(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rates = " ".join(f"{f'{n} a pass':>9s}" for n in rows[0]["diffusion_tokens_per_s"])
    yield f"{'tokens a second':44s} {'ar':>6s}  {rates}  level at"
    for row in rows:
        name = f"{row['card']} {row['engine']} {row['launched']}, {row['experts']} experts"
        rates = " ".join(f"{rate:9.0f}" for rate in row["diffusion_tokens_per_s"].values())
        level = row["break_even_tokens_a_pass"]
        told = f"{level:.1f} a pass" if level else "never"
        yield f"{name:44s} {row['ar_tokens_per_s']:6.0f}  {rates}  {told}"
