"""Picks and confidences from the candidates of a pass.

Sampling sees the candidates only (64 at most): what top-p would keep beyond them is cut. Each draw
comes from its own counter-based generator, keyed by seed, response position and pass, so it does
not depend on what else runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clover_rt.spec import Picks

CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature, then top-k (0: all candidates), then top-p; seed keys the generator."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


def uniform(seed: int, position: int, index: int) -> float:
    """Return the number in [0, 1) of (seed, response position, pass)."""
    key = np.array([seed % 2**64, (position << 32) | index], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key)).random())


def draw(logits: npt.NDArray[np.float32], sampling: Sampling, u: float) -> int:
    """Return the candidate index drawn by u in [0, 1) from logits in falling order.

    The candidates kept are those with less than top_p (above 0) of the mass before them.
    """
    k = sampling.top_k or len(logits)
    live = logits[:k].astype(np.float64)
    live = live[np.isfinite(live)]
    p = np.exp((live - live[0]) / sampling.temperature)
    p /= p.sum()
    before = np.concatenate([[0.0], np.cumsum(p)[:-1]])
    # nothing comes before the first, so it is always kept
    p = p[: int((before < sampling.top_p).sum())]
    edges = np.cumsum(p)
    return min(int(np.searchsorted(edges, u * edges[-1], side="right")), len(p) - 1)


def choose(
    picks: Picks, row: int, sampling: Sampling | None, position: int, index: int
) -> tuple[int, np.float32]:
    """Return the picked id and its confidence: its softmax probability at temperature 1."""
    chosen = 0
    if sampling is not None:
        u = uniform(sampling.seed, position, index)
        chosen = draw(picks.logits[row], sampling, u)
    logit = float(picks.logits[row, chosen])
    return int(picks.ids[row, chosen]), probability(logit, float(picks.lse[row]))


def probability(logit: float, lse: float) -> np.float32:
    """Return exp(logit - lse), computed in float64 and rounded to float32."""
    return np.float32(np.exp(logit - lse))
