"""Checkpoints that can be quantised, and the formulas of the stored formats, for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from clover_rt.quantise import keep_rule, quantise
from clover_rt.spec import Format
from clover_rt.weights import Checkpoint
from tests import golden
from tests.unit import checkpoints

PROTO = golden.PROTO
CODES = {"I8": np.int8, "U8": np.uint8, "F16": np.float16}


def tensors() -> checkpoints.Tensors:
    """Return the trained model's tensors."""
    return {name: v.array for name, v in Checkpoint.open(PROTO).tensors.items()}


def split(fused: checkpoints.Tensors) -> checkpoints.Tensors:
    """Return the same tensors with one tensor an expert and projection."""
    out = {}
    for name, value in fused.items():
        at, _, kind = name.rpartition(".")
        for e in range(len(value)) if ".mlp.experts." in name else ():
            if kind == "down_proj":
                out[f"{at}.{e}.down_proj.weight"] = value[e]
            else:
                gate, up = np.split(value[e], 2)
                out |= {f"{at}.{e}.gate_proj.weight": gate, f"{at}.{e}.up_proj.weight": up}
        if ".mlp.experts." not in name:
            out[name] = value
    return out


def write(folder: Path, values: checkpoints.Tensors, shards: int = 1, **changes: Any) -> Path:
    """Write tensors with the trained model's settings and tokenizer."""
    config = json.loads((PROTO / "config.json").read_text()) | changes
    checkpoints.write(folder, values, config, shards=shards)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PROTO / name, folder)
    return folder


def make(source: Path, target: Path, form: str = "q4", group: int = 32, **options: Any) -> Any:
    """Quantise a folder; keep rules are texts."""
    options["keep"] = [keep_rule(text) for text in options.get("keep", ())]
    return quantise(Checkpoint.open(source), target, Format(form), group, **options)


def read(folder: Path) -> dict[str, np.ndarray]:
    """Return every stored tensor of a folder of quantised files, by the safetensors package."""
    from safetensors import safe_open

    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118
                out[name] = file.get_tensor(name)
    return out


def decoded(stored: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return a tensor's numbers in float64 by the formulas of docs/formats.md."""
    codes, scale = stored[name + ".codes"], stored[name + ".scale"].astype(np.float64)
    if codes.dtype == np.uint8:
        k = np.empty((*codes.shape[:-1], codes.shape[-1] * 2))
        k[..., 0::2], k[..., 1::2] = codes % 16, codes // 16
        k -= 8
    else:
        k = codes.astype(np.float64)
    return k * np.repeat(scale, k.shape[-1] // scale.shape[-1], axis=-1)
