"""The golden data: tiny checkpoints, and the arrays and runs that an independent program gave."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.engine import Accept, Mode, ModelFacts, Request
from clover_rt.model.generation import GenerationConfig
from clover_rt.weights import Checkpoint

FOLDER = Path(__file__).resolve().parents[1] / "golden"
PROMPTS = ("short", "one", "long")
FACTS = {
    "clover_tiny": ModelFacts(320, 32, 318, 0.95, 315, 314),
    "clover_tiny_b8": ModelFacts(320, 8, 318, 0.95, 315, 314),
    "qwen35moe_tiny": ModelFacts(320),
}
NEUTRAL_STOPS = (317, 319)
MAX_TOKENS = {"clover_tiny": 80, "clover_tiny_b8": 30}
MODES: dict[str, dict[str, Any]] = {
    "diffusion": {"mode": Mode.DIFFUSION, "early_end": False},
    "diffusion_t03": {"mode": Mode.DIFFUSION, "early_end": False, "threshold": 0.3},
    "ar": {"mode": Mode.AR},
    "self_spec_exact": {"mode": Mode.SELF_SPEC, "accept": Accept.EXACT, "draft_width": 8},
    "self_spec_typical": {"mode": Mode.SELF_SPEC, "accept": Accept.TYPICAL, "draft_width": 8},
}


@cache
def arrays(name: str) -> dict[str, npt.NDArray[Any]]:
    """Return every array of a checkpoint's golden data."""
    with np.load(FOLDER / f"{name}.npz") as data:
        return {key: data[key] for key in data.files}


@cache
def runs(name: str) -> dict[str, Any]:
    """Return prompts, decoding runs and rounds of a checkpoint."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return data


@cache
def checkpoint(name: str) -> Checkpoint:
    return Checkpoint.open(FOLDER / name)


def prompt_ids(name: str, prompt: str) -> tuple[int, ...]:
    """Return the ids of a golden prompt."""
    if name == "qwen35moe_tiny":
        return tuple(arrays(name)[f"{prompt}.ids"].tolist())
    return tuple(runs(name)["prompts"][prompt])


def request(name: str, run: str, **changes: Any) -> Request:
    """Return the request of a golden run such as `short/release/ar`, with changes."""
    prompt, controls, mode = run.split("/")
    fields: dict[str, Any] = {
        "prompt": prompt_ids(name, prompt),
        "max_tokens": MAX_TOKENS[name],
        "stops": NEUTRAL_STOPS,
        **MODES[mode],
    }
    if controls == "release":
        data = json.loads((FOLDER / name / "generation_config.json").read_text())
        config = GenerationConfig.parse(data, checkpoint(name).config)
        fields |= {"stops": config.stop_ids, "controls": config.controls}
    return Request(**(fields | changes))
