"""Requests of the golden runs."""

from __future__ import annotations

from typing import Any

from clover_rt.engine import Accept, Mode, ModelFacts, Request
from clover_rt.spec import Controls
from tests.golden import generation_config, runs, stop_ids

NEUTRAL_STOPS = (317, 319)
FACTS = {
    "clover_tiny": ModelFacts(320, 32, 318, 0.95, 315, 314),
    "clover_tiny_b8": ModelFacts(320, 8, 318, 0.95, 315, 314),
    "qwen35moe_tiny": ModelFacts(320),
}
MODES: dict[str, dict[str, Any]] = {
    "diffusion": {"mode": Mode.DIFFUSION, "early_end": False},
    "diffusion_t03": {"mode": Mode.DIFFUSION, "early_end": False, "threshold": 0.3},
    "ar": {"mode": Mode.AR},
    "self_spec_exact": {"mode": Mode.SELF_SPEC, "accept": Accept.EXACT, "draft_width": 8},
    "self_spec_typical": {"mode": Mode.SELF_SPEC, "accept": Accept.TYPICAL, "draft_width": 8},
}
MAX_TOKENS = {"clover_tiny": 80, "clover_tiny_b8": 30}


def controls_of(config: dict[str, Any]) -> Controls:
    """Return the controls of a generation_config with every key of the golden ones."""
    return Controls(
        frequency=config["frequency_penalty"],
        presence=config["presence_penalty"],
        repetition=config["repetition_penalty"],
        length_penalty=config["dllm_length_penalty"],
        length_start=config["dllm_length_penalty_start"],
        length_window=config["dllm_length_penalty_window"],
        think_bias=config["dllm_think_end_bias"],
        think_start=config["dllm_think_end_start"],
        think_window=config["dllm_think_end_window"],
        think_end=config["dllm_think_end_token_id"],
    )


def golden_request(name: str, run: str, **changes: Any) -> Request:
    """Return the request of a run such as `short/release/ar`, with changes."""
    prompt, controls, mode = run.split("/")
    config = generation_config(name)
    fields: dict[str, Any] = {
        "prompt": tuple(runs(name)["prompts"][prompt]),
        "max_tokens": MAX_TOKENS[name],
        "stops": NEUTRAL_STOPS,
        **MODES[mode],
    }
    if controls == "release":
        fields |= {"stops": stop_ids(config), "controls": controls_of(config)}
    return Request(**(fields | changes))
