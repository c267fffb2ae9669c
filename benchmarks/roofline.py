#!/usr/bin/env python3
"""Say where the time of a pass of the whole release would go on cards, from the plan itself.

    roofline.py                          text; q4 in groups of 32, 4096 tokens before the pass
    roofline.py --format q8 --json
    roofline.py --experts 90 163 --launch-us 4 --out roofline.json

The release is bound as it would be on a card, from headers alone: no weight has data and no card is
needed. Each step of a pass is asked how many kernels it launches, and its bytes are counted from
its operands: weights, KV cache and state, each moved once, beside the least that the model needs
(its sizes by formula). Rows between steps are listed apart, since caches serve them.

Times are predictions, not measurements. A step takes the larger of its bytes over the bandwidth and
its operations over the arithmetic rate, both times the share of a card's peak that kernels are
taken to reach; each launch adds its cost. `bound` is the least: the minimum's bytes at the full
bandwidth and nothing else. Every assumption is a setting and is printed.

triton: the kernels of cuda, which rocm runs too where torch is a ROCm build. opencl: those of rocm
elsewhere. vulkan: its shaders. A recorded pass is one submission (a CUDA or HIP graph, a command
buffer); else the host makes every launch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines import ENGINES, Load, Step, as_stored, plan_of, steps_of
from make_release import make_release
from roofline_text import render

from clover_rt.bench.traffic import Traffic
from clover_rt.errors import CloverError
from clover_rt.model.config import LayerType, ModelConfig
from clover_rt.spec import Format, HostWeight, TableClass
from clover_rt.weights import Checkpoint, load_weights

BLOCK = 32
LAYERS, VOCAB = 40, 248320
# distinct experts a layer for the rows of a block: with a coreset, and chosen independently
ROUTINGS = (90, 163)
TOKENS_A_PASS = (2, 4, 8)
KV_ITEM = 2
# rows of a pass up to which products are made without matrix units
FEW_ROWS = 4
RECORDED, SINGLE = "recorded", "one by one"


@dataclass(frozen=True, slots=True)
class Card:
    """A card by its data sheet, and the engines that serve it.

    matrix_tflops, vector_tflops  dense bfloat16 with sums in float32, and float32
    """

    name: str
    gb_per_s: float
    matrix_tflops: float
    vector_tflops: float
    memory_gb: float
    engines: tuple[str, ...]


AMD, NVIDIA = ("triton", "opencl", "vulkan"), ("triton", "vulkan")
CARDS = (
    Card("R9700", 640, 191, 47.8, 32, AMD),
    Card("7900 XTX", 960, 123, 61.4, 24, AMD),
    Card("Strix Halo", 256, 59, 29.7, 128, AMD),
    Card("RTX 5090", 1792, 209, 104.8, 32, NVIDIA),
    Card("H200", 4800, 989, 66.9, 141, NVIDIA),
)
INT8_WORK = 13 / 32
"""Instructions of products in 8 bits over those in float32: 8 dots and 5 others for 32 products."""
WAYS = {"triton": (RECORDED, SINGLE), "opencl": (SINGLE,), "vulkan": (RECORDED,)}


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a prediction takes for granted.

    bandwidth_share   of the card's peak that kernels get
    arithmetic_share  likewise of its arithmetic rate
    recorded_us, triton_us, opencl_us  cost of a launch in a recorded pass, and of one that the
                      host makes
    """

    bandwidth_share: float = 0.8
    arithmetic_share: float = 0.4
    recorded_us: float = 3.0
    triton_us: float = 20.0
    opencl_us: float = 8.0

    def launch_us(self, engine: str, way: str) -> float:
        if way == RECORDED:
            return self.recorded_us
        return self.triton_us if engine == "triton" else self.opencl_us


def loads(routings: Sequence[int], top_k: int, depth: int) -> list[Load]:
    """Return the passes of decoding: a token, and of each routing a block's preview and commit."""
    out = [Load("decode", TableClass.COMMIT, 1, 1, top_k, depth)]
    for n in routings:
        out.append(Load(f"preview, {n} experts", TableClass.PREVIEW, BLOCK, BLOCK, n, depth))
        out.append(Load(f"commit, {n} experts", TableClass.COMMIT, BLOCK, 0, n, depth))
    return out


def minimum(config: ModelConfig, load: Load, each: Mapping[str, float]) -> Traffic:
    """Return the least bytes of a pass by the model's sizes alone.

    each  bytes a number of experts, dense matrices, head and embed, and of what is small
    """
    c, d = config, config.hidden_size
    layers = len(c.layer_types)
    gdn = sum(kind is LayerType.GDN for kind in c.layer_types)
    attention = layers - gdn
    values = c.value_heads * c.value_dim
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    expert = 3 * d * c.expert_width
    dense = gdn * d * (c.conv_channels + 2 * values) + layers * 3 * d * c.shared_width
    dense += attention * d * (3 * queries + 2 * keys)
    # router, gate of the shared expert, norms; gates, taps and vectors of a mixer
    small = layers * d * (c.experts + 1 + 2) + d + attention * 2 * c.head_dim
    small += gdn * (2 * d * c.value_heads + c.conv_channels * c.conv_kernel)
    small += gdn * (2 * c.value_heads + c.value_dim)
    weights = dense * each["dense"] + small * each["small"] + load.rows * d * each["embed"]
    weights += c.vocab_size * d * each["head"] if load.wanted else 0
    commits = load.table is TableClass.COMMIT
    state = 4 * c.value_dim * c.key_dim * c.value_heads + 4 * (c.conv_kernel - 1) * c.conv_channels
    kept = load.depth + (load.rows if commits else 0)
    return Traffic(
        experts=layers * min(load.experts, c.experts) * expert * each["experts"],
        weights=weights,
        kv=float(attention * 2 * keys * KV_ITEM * kept),
        state=float(gdn * state * (2 if commits else 1)),
    )


def bytes_each(form: Format, group: int) -> dict[str, float]:
    """Return the bytes of a number by class, as `clover-rt quantize` stores them."""
    q8 = 1 + 2 / 32
    matrices = {Format.Q4: 0.5 + 2 / group, Format.Q8: q8}.get(form, 2.0)
    fine = q8 if form.is_quantised else 2.0
    return {"experts": matrices, "dense": matrices, "head": fine, "embed": fine, "small": 2.0}


def predict(
    steps: Sequence[Step], load: Load, card: Card, engine: str, way: str, assumed: Assumed
) -> dict[str, Any]:
    """Return the predicted ms of a pass and the share of each class of work."""
    uses_matrix = engine == "triton" and load.rows > FEW_ROWS
    rate = 1e12 * assumed.arithmetic_share
    rate *= card.matrix_tflops if uses_matrix else card.vector_tflops
    bandwidth = 1e9 * card.gb_per_s * assumed.bandwidth_share
    ms: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for step in steps:
        memory, arithmetic = step.moved.cold / bandwidth, step.flops / rate
        arithmetic *= INT8_WORK if step.is_int8 else 1
        limits["memory" if memory >= arithmetic else "arithmetic"] += max(memory, arithmetic)
        took = 1e3 * max(memory, arithmetic)
        routed = step.moved.experts / step.moved.cold if step.moved.cold else 0.0
        ms["experts"] += took * routed
        ms[CLASSES[step.op]] += took * (1 - routed)
    launches = sum(step.launches for step in steps)
    ms["launches"] = limits["launches"] = launches * assumed.launch_us(engine, way) / 1e3
    limits["launches"] /= 1e3
    total = sum(ms.values())
    return {
        "card": card.name,
        "engine": engine,
        "pass": load.name,
        "launched": way,
        "ms": total,
        "share": {name: part / total for name, part in ms.most_common() if part},
        "limit": max(limits, key=lambda name: limits[name]),
    }


CLASSES = {
    "begin": "rest",
    "embed": "rest",
    "gdn": "GDN mixers",
    "attention": "attention mixers",
    "moe": "router and shared expert",
    "pick": "head",
}


def decoding(at: Mapping[str, float], routing: int, tokens_a_pass: Sequence[int]) -> dict[str, Any]:
    """Return tokens a second of both modes, and the tokens a pass at which they are level.

    at  ms of each pass by its name. A block takes its previews and one commit.
    """
    token, preview = at["decode"], at[f"preview, {routing} experts"]
    commit = at[f"commit, {routing} experts"]
    room = token - commit / BLOCK
    return {
        "experts": routing,
        "ar_tokens_per_s": 1e3 / token,
        "diffusion_tokens_per_s": {
            n: 1e3 * BLOCK / (preview * BLOCK / n + commit) for n in tokens_a_pass
        },
        "break_even_tokens_a_pass": preview / room if room > 0 else None,
    }


def report(
    form: Format,
    group: int,
    depth: int,
    routings: Sequence[int],
    assumed: Assumed,
    engines: Sequence[str],
    layers: int = LAYERS,
) -> dict[str, Any]:
    """Return bytes and launches by engine and pass, the minimum, and predictions by card."""
    config, weights = release(layers)
    weights = as_stored(weights, form, group)
    passes = loads(routings, config.experts_per_token, depth)
    each = bytes_each(form, group)
    least = {load.name: minimum(config, load, each) for load in passes}
    counted: dict[str, dict[str, list[Step]]] = {}
    missing = {}
    for name in engines:
        try:
            engine = ENGINES[name]()
            plan = plan_of(engine, config, weights, context=depth + 64)
            counted[name] = {load.name: steps_of(plan, load, engine) for load in passes}
            engine.close()
        except (ImportError, CloverError) as error:
            missing[name] = str(error)
    predictions = []
    modes = []
    for card, engine, way in ways(counted):
        found = [
            predict(counted[engine][load.name], load, card, engine, way, assumed) for load in passes
        ]
        for one in found:
            one["bound_ms"] = 1e3 * least[one["pass"]].cold / (1e9 * card.gb_per_s)
        predictions += found
        at = {one["pass"]: one["ms"] for one in found}
        for routing in routings:
            told = decoding(at, routing, TOKENS_A_PASS)
            modes.append({"card": card.name, "engine": engine, "launched": way, **told})
    size = sum(weight.nbytes for weight in weights.values())
    return {
        "benchmark": "roofline",
        "schema": 1,
        "settings": {
            "layers": layers,
            "format": form.value,
            "group": group,
            "depth": depth,
            "experts": list(routings),
            "precision": "fast",
        },
        "assumed": asdict(assumed),
        "cards": [{**asdict(card), "fits": size < 1e9 * card.memory_gb} for card in CARDS],
        "weights_gb": size / 1e9,
        "minimum": {name: gigabytes(moved) for name, moved in least.items()},
        "engines": {
            name: {load: counts(steps, least[load]) for load, steps in found.items()}
            for name, found in counted.items()
        },
        "not_counted": missing,
        "per_token": {
            name: list(per_token(found, least, routings)) for name, found in counted.items()
        },
        "predictions": predictions,
        "decoding": modes,
    }


def release(layers: int) -> tuple[ModelConfig, dict[str, HostWeight]]:
    """Return the release's configuration and its weights, which have no data."""
    folder = Path(tempfile.mkdtemp(prefix="clover-roofline-"))
    try:
        make_release(folder, layers=layers, vocab=VOCAB, sparse=True)
        checkpoint = Checkpoint.open(folder)
        return checkpoint.config, dict(load_weights(checkpoint))
    finally:
        # the files are mapped: their holes can still be read
        shutil.rmtree(folder)


def ways(counted: Mapping[str, Any]) -> Iterator[tuple[Card, str, str]]:
    """Yield (card, engine, way of launching) for what was counted."""
    for card in CARDS:
        for engine in card.engines:
            for way in WAYS[engine] if engine in counted else ():
                yield card, engine, way


def counts(steps: Sequence[Step], least: Traffic) -> dict[str, Any]:
    """Return what a pass's steps launch and move."""
    moved = sum((step.moved for step in steps), Traffic())
    by_op: Counter[str] = Counter()
    for step in steps:
        by_op[step.op] += step.launches
    return {
        "launches": sum(by_op.values()),
        "launches_by_op": dict(by_op),
        "gb": gigabytes(moved),
        "over_minimum": moved.cold / least.cold,
        "gigaflops": sum(step.flops for step in steps) / 1e9,
    }


def per_token(
    found: Mapping[str, Sequence[Step]], least: Mapping[str, Traffic], routings: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield bytes and launches of a token in each mode; a block is its previews and a commit."""

    def told(mode: str, parts: Mapping[str, float], **more: float) -> dict[str, Any]:
        def total(of: Callable[[str], float]) -> float:
            return sum(times * of(name) for name, times in parts.items())

        def moved(name: str) -> float:
            return sum(step.moved.cold for step in found[name]) / 1e9

        return {
            "mode": mode,
            **more,
            "gb": total(moved),
            "minimum_gb": total(lambda name: least[name].cold / 1e9),
            "launches": total(lambda name: sum(step.launches for step in found[name])),
        }

    yield told("ar", {"decode": 1})
    for n in routings:
        for tokens in TOKENS_A_PASS:
            parts = {f"preview, {n} experts": 1 / tokens, f"commit, {n} experts": 1 / BLOCK}
            yield told("diffusion", parts, experts=n, tokens_a_pass=tokens)


def gigabytes(moved: Traffic) -> dict[str, float]:
    """Return the kinds of bytes in GB; `cold` is all that caches cannot serve."""
    return {name: nbytes / 1e9 for name, nbytes in {**asdict(moved), "cold": moved.cold}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    assumed = Assumed()
    parser.add_argument("--format", default="q4", choices=("q4", "q8", "bf16"))
    parser.add_argument("--group", type=int, default=32, choices=(32, 64, 128))
    parser.add_argument("--depth", type=int, default=4096, help="tokens before the pass")
    parser.add_argument("--experts", type=int, nargs="+", default=list(ROUTINGS), metavar="N")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--bandwidth-share", type=float, default=assumed.bandwidth_share)
    parser.add_argument("--arithmetic-share", type=float, default=assumed.arithmetic_share)
    parser.add_argument("--launch-us", type=float, default=assumed.recorded_us, metavar="US")
    parser.add_argument("--triton-us", type=float, default=assumed.triton_us, metavar="US")
    parser.add_argument("--opencl-us", type=float, default=assumed.opencl_us, metavar="US")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    args = parser.parse_args()
    found = report(
        Format(args.format),
        args.group,
        args.depth,
        args.experts,
        Assumed(
            args.bandwidth_share,
            args.arithmetic_share,
            args.launch_us,
            args.triton_us,
            args.opencl_us,
        ),
        args.engines,
    )
    text = json.dumps(found, indent=1)
    print(text if args.json else render(found))
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
