"""A checkpoint's weights by class and format, and what they would weigh in other formats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clover_rt.spec import Format, HostWeight

EXPERTS = ("expert_gate", "expert_up", "expert_down")
CLASSES = {
    "experts": EXPERTS,
    "shared expert": ("shared_gate", "shared_up", "shared_down", "shared_scale"),
    "router": ("router",),
    "gdn": (
        *("qkv", "z", "a", "b", "conv", "A_log", "dt_bias", "norm", "out"),
        *("right", "logit_scale", "history_bias", "history_c"),
    ),
    "attention": ("q", "gate", "k", "v", "o", "q_norm", "k_norm"),
    "norms": ("input_norm", "post_norm"),
}
"""Last parts of the names inside a layer, by class."""

OUTSIDE = {"embed": "embeddings", "head": "head", "norm": "norms"}
MATRICES = (
    *EXPERTS,
    *("shared_gate", "shared_up", "shared_down"),
    *("qkv", "z", "out"),
    *("q", "gate", "k", "v", "o"),
    *("embed", "head"),
)
"""What is worth quantising; the others are small, and routing is sensitive: they stay as stored."""


@dataclass(frozen=True, slots=True)
class Share:
    """One class of tensors in one format; group is 0 where the format has no groups."""

    name: str
    format: Format
    group: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to store the matrices: (format, group) of the experts and of the other matrices."""

    name: str
    experts: tuple[Format, int]
    others: tuple[Format, int]


BF16 = (Format.BF16, 0)
Q8 = (Format.Q8, 32)
SCHEMES = (
    Scheme("q8", Q8, Q8),
    *(Scheme(f"q4-{g} experts, rest bf16", (Format.Q4, g), BF16) for g in (32, 64, 128)),
    *(Scheme(f"q4-{g} experts, rest q8", (Format.Q4, g), Q8) for g in (32, 64, 128)),
    *(Scheme(f"q4-{g}", (Format.Q4, g), (Format.Q4, g)) for g in (32, 64, 128)),
)


QUANTISED = Scheme("q4", (Format.Q4, 32), Q8)
"""At most what `clover-rt quantize --format q4` makes: of other matrices too most are q4 there."""


def class_of(name: str) -> str:
    """Return the class of a weight by its logical name, such as `layers.3.qkv`."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    last = name.rsplit(".", 1)[-1]
    return next(c for c, names in CLASSES.items() if last in names)


def shares(weights: Mapping[str, HostWeight]) -> list[Share]:
    """Return the classes in the order of their bytes, largest first; a tied head counts once."""
    sums: dict[tuple[str, Format, int], list[int]] = {}
    for name, weight in distinct(weights).items():
        key = (class_of(name), weight.format, weight.group)
        total = sums.setdefault(key, [0, 0])
        total[0] += math.prod(weight.shape)
        total[1] += weight.nbytes
    rows = [Share(*key, *total) for key, total in sums.items()]
    return sorted(rows, key=lambda row: -row.bytes)


def distinct(weights: Mapping[str, HostWeight]) -> dict[str, HostWeight]:
    """Return the weights by name without those that are another one under a second name."""
    seen: set[int] = set()
    out = {}
    for name, weight in weights.items():
        if id(weight) not in seen:
            seen.add(id(weight))
            out[name] = weight
    return out


def stored_as(weights: Mapping[str, HostWeight], scheme: Scheme) -> int:
    """Return the bytes of the weights in a scheme.

    A matrix whose inner length the group does not divide stays as it is, and so does what is
    quantised already.
    """
    return sum(_bytes(name.rsplit(".", 1)[-1], w, scheme) for name, w in distinct(weights).items())


def is_quantised(rows: Iterable[Share]) -> bool:
    return any(row.format.is_quantised for row in rows)


def _bytes(last: str, weight: HostWeight, scheme: Scheme) -> int:
    form, group = scheme.experts if last in EXPERTS else scheme.others
    keeps = last not in MATRICES or weight.format.is_quantised or not form.is_quantised
    if keeps or weight.shape[-1] % group:
        return weight.nbytes
    count = math.prod(weight.shape)
    codes = count if form is Format.Q8 else count // 2
    # one float16 scale a group
    return codes + 2 * (count // group)
