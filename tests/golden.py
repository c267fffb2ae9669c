"""The golden data: tiny checkpoints, and the arrays and runs that an independent program gave."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "conformance" / "clover_rt_conformance" / "golden"
PROMPTS = ("short", "one", "long")
# a small model that was trained: its answers to 67 prompts are in end_to_end/prompts.json
PROTO = ROOT / "tests" / "clover_proto"


@cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """Return every array of `NAME.npz`."""
    with np.load(GOLDEN / f"{name}.npz") as data:
        return {key: data[key] for key in data.files}


@cache
def runs(name: str) -> dict[str, Any]:
    """Return `NAME.json`: prompts, decode, and for clover_tiny rounds and controls."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


def checkpoint(name: str) -> Path:
    """Return the folder of a tiny checkpoint."""
    return GOLDEN / name


@cache
def generation_config(name: str) -> dict[str, Any]:
    """Return the checkpoint's generation_config.json."""
    return json.loads((checkpoint(name) / "generation_config.json").read_text())


def stop_ids(config: dict[str, Any]) -> tuple[int, ...]:
    """Return eos ids, stop_token_ids and the pad id of a generation_config, in that order."""
    eos = config.get("eos_token_id")
    ids = list(eos) if isinstance(eos, list) else [] if eos is None else [eos]
    ids += config.get("stop_token_ids") or []
    if config.get("pad_token_id") is not None:
        ids.append(config["pad_token_id"])
    return tuple(dict.fromkeys(ids))


def assert_close(got: np.ndarray, want: np.ndarray, bound: float, what: str) -> None:
    """Fail with the largest difference and its place where |got - want| exceeds the bound."""
    assert got.shape == want.shape, f"{what}: shape {got.shape}, want {want.shape}"
    if want.size == 0:
        return
    error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    worst = np.unravel_index(int(np.argmax(error)), want.shape)
    assert error[worst] <= bound, f"{what}{list(map(int, worst))}: off by {error[worst]:.3g}"
