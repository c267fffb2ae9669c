#!/usr/bin/env python3
"""Write a clover_moe checkpoint in the release's geometry: random bf16 weights, q4, q8, or holes.

    make_release.py OUT                                     4 layers with data, 7.0 GB
    make_release.py OUT --format q4                         likewise as `quantize` stores it, 2.0 GB
    make_release.py OUT --layers 40 --vocab 248320 --sparse the whole release's headers, no data
    make_release.py OUT --layers 40 --vocab 248320 --sparse --per-expert --shards 26

Values are scaled by fan-in, so that activations stay sane and routing spreads over the experts.
With a format the codes are drawn, so that nothing larger is written first.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import ml_dtypes
import numpy as np

from clover_rt.model.config import ModelConfig
from clover_rt.model.names import HEAD, Part, split_expert, stored_tensors
from clover_rt.spec import Format
from clover_rt.weights import Checkpoint

if TYPE_CHECKING:
    from clover_rt.quantise.rules import Choice

PREFIX = "model."
POOL = 1 << 24
SMALL = 1 << 22
# steps of a code in a standard deviation: 4 bits reach 3 deviations, 8 bits 4
STEPS = {Format.Q4: 2.5, Format.Q8: 32.0}
GROUP = 32
Tensor = tuple[str, tuple[int, ...], str]


def make_release(
    out: Path,
    layers: int = 4,
    vocab: int = 32768,
    seed: int = 0,
    sparse: bool = False,
    per_expert: bool = False,
    shards: int = 1,
) -> None:
    """Write the folder: config, generation defaults, tokenizer, weights, and an index for shards.

    sparse      leave the data out: files of full size that take no room on the disk
    per_expert  one tensor an expert and projection instead of two fused ones a layer
    """
    out.mkdir(parents=True, exist_ok=True)
    config = release_config(layers, vocab)
    texts = {
        "config.json": config,
        "generation_config.json": {
            "eos_token_id": [vocab - 1],
            "pad_token_id": vocab - 3,
            "dllm_think_end_token_id": vocab - 4,
        },
        "tokenizer.json": tokenizer(vocab),
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "pad_token": "<|pad|>",
            "mask_token": "<|mask|>",
        },
    }
    for name, content in texts.items():
        (out / name).write_text(json.dumps(content))
    rng = np.random.default_rng(seed)
    pool = None if sparse else rng.standard_normal(POOL, np.float32)
    groups = list(cut(list(tensors(ModelConfig.parse(config), per_expert)), shards))
    weight_map = {}
    for i, group in enumerate(groups):
        name = "model.safetensors"
        if shards > 1:
            name = f"model-{i + 1:05}-of-{len(groups):05}.safetensors"
        weight_map.update({tensor: name for tensor, _, _ in group})
        write_file(out / name, group, rng, pool)
    if shards > 1:
        total = sum(2 * math.prod(shape) for group in groups for _, shape, _ in group)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / "model.safetensors.index.json").write_text(json.dumps(index))


def make_packed(
    out: Path, form: Format, layers: int = 4, vocab: int = 32768, seed: int = 0
) -> None:
    """Write the folder with random codes in the places and files of `clover-rt quantize`."""
    # inside: open.py measures the memory of a process that imports this module
    from clover_rt.quantise.rules import choose
    from clover_rt.quantise.shards import SHARD_BYTES, index
    from clover_rt.quantise.shards import cut as cut_packed

    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    pool = rng.standard_normal(POOL, np.float32)
    with tempfile.TemporaryDirectory() as where:
        holes = Path(where)
        make_release(holes, layers, vocab, sparse=True)
        shards = cut_packed(choose(Checkpoint.open(holes), form, GROUP, []), GROUP, SHARD_BYTES)
        for shard in shards:
            with (out / shard.name).open("wb") as stream:
                stream.write(shard.header)
                for choice in shard.choices:
                    write_choice(stream, choice, rng, pool)
        if len(shards) > 1:
            (out / "model.safetensors.index.json").write_text(index(shards))
        for file in holes.glob("*.json"):
            (out / file.name).write_bytes(file.read_bytes())


def release_config(layers: int, vocab: int) -> dict[str, Any]:
    """Return the release's config.json with another number of layers and vocabulary."""
    return {
        "model_type": "clover_moe",
        "architectures": ["CloverMoeModelLM"],
        "vocab_size": vocab,
        "hidden_size": 2048,
        "num_hidden_layers": layers,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_shared_experts": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
        "tie_word_embeddings": False,
        "block_size": 32,
        "mask_token_id": vocab - 2,
        "moe_block_coreset_enabled": True,
        "moe_block_coreset_top_p": 0.8,
        "denoising_config": {"algorithm": "low_confidence", "threshold": 0.95},
        "eos_token_id": vocab - 1,
        "dtype": "bfloat16",
    }


def tensors(config: ModelConfig, per_expert: bool) -> Iterator[Tensor]:
    """Yield (stored name, stored shape, role) of every tensor."""
    for stored in stored_tensors(config):
        role = stored.logical.rsplit(".", 1)[-1]
        if stored.logical == "norm":
            role = "final_norm"
        shape = stored.accepted[0]
        if per_expert and stored.part in (Part.FUSED, Part.DOWN):
            experts, rows, columns = shape
            is_down = stored.part is Part.DOWN
            for expert in range(experts):
                for projection in ("down",) if is_down else ("gate", "up"):
                    name = PREFIX + split_expert(stored.logical, expert, projection)
                    yield name, (rows if is_down else rows // 2, columns), role
            continue
        name = stored.name if stored.name == HEAD else PREFIX + stored.name
        yield name, shape, role


def cut(listed: list[Tensor], count: int) -> Iterator[list[Tensor]]:
    """Yield at most `count` runs of tensors of about equal bytes."""
    sizes = np.cumsum([math.prod(shape) for _, shape, _ in listed])
    edges = np.searchsorted(sizes, sizes[-1] * np.arange(1, count) / count)
    bounds = [0, *sorted({int(e) for e in edges} - {0}), len(listed)]
    for lo, hi in zip(bounds, bounds[1:], strict=False):
        yield listed[lo:hi]


def write_file(
    path: Path, listed: Sequence[Tensor], rng: np.random.Generator, pool: np.ndarray | None
) -> None:
    """Write one safetensors file; without a pool its data is a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape, _ in listed:
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    blob = json.dumps(header).encode()
    blob += b" " * (-len(blob) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(blob)))
        stream.write(blob)
        if pool is None:
            stream.truncate(8 + len(blob) + end)
            return
        for _, shape, role in listed:
            write_values(stream, shape, role, rng, pool)


def write_values(
    stream: BinaryIO,
    shape: tuple[int, ...],
    role: str,
    rng: np.random.Generator,
    pool: np.ndarray,
) -> None:
    """Write one tensor; a large one is made of stretches of the pool, to be quick."""
    count = math.prod(shape)
    if count < SMALL:
        stream.write(small_values(shape, role, rng).astype(ml_dtypes.bfloat16).tobytes())
        return
    scaled = (pool * np.float32(deviation(shape, role))).astype(ml_dtypes.bfloat16)
    write_stretches(stream, scaled, count, rng)


def write_choice(
    stream: BinaryIO, choice: Choice, rng: np.random.Generator, pool: np.ndarray
) -> None:
    """Write the codes and scales of a tensor, or its values where it stays as it is."""
    shape, role = choice.view.shape, choice.weight.rsplit(".", 1)[-1]
    if choice.format is None:
        role = "final_norm" if choice.weight == "norm" else role
        write_values(stream, shape, role, rng, pool)
        return
    steps, count = STEPS[choice.format], math.prod(shape)
    if choice.format is Format.Q8:
        write_stretches(stream, np.clip(pool * steps, -127, 127).astype(np.int8), count, rng)
    else:
        nibbles = np.clip(pool * steps + 8.5, 0, 15).astype(np.uint8)
        write_stretches(stream, nibbles[::2] | nibbles[1::2] << 4, count // 2, rng)
    scale = np.float16(deviation(shape, role) / steps)
    stream.write(np.full(count // choice.group, scale).tobytes())


def write_stretches(
    stream: BinaryIO, numbers: np.ndarray, count: int, rng: np.random.Generator
) -> None:
    """Write so many numbers as stretches from random places of an array."""
    while count:
        start = int(rng.integers(0, len(numbers) - 1))
        stretch = numbers[start : start + count]
        stream.write(stretch.tobytes())
        count -= len(stretch)


def deviation(shape: tuple[int, ...], role: str) -> float:
    """Return the standard deviation of a matrix's numbers."""
    return 1.0 if role == "embed" else shape[-1] ** -0.5


def small_values(shape: tuple[int, ...], role: str, rng: np.random.Generator) -> np.ndarray:
    """Return float64 values of a size that the role has in trained models."""
    ranges = {
        "dt_bias": (-2.0, 1.0),
        "history_c": (-2.0, 1.0),
        "logit_scale": (2.0, 8.0),
        "history_bias": (0.0, 3.0),
    }
    if role in ranges:
        return rng.uniform(*ranges[role], shape)
    if role == "A_log":
        return np.log(rng.uniform(0.05, 4.0, shape))
    values = rng.standard_normal(shape)
    if role == "norm":
        return 1 + 0.1 * values
    if role.endswith("norm"):
        return 0.1 * values
    if role in ("conv", "right"):
        return 0.5 * values
    return values if role == "embed" else values * shape[-1] ** -0.5


def tokenizer(vocab: int) -> dict[str, Any]:
    """Return a byte-level tokenizer.json: ids 0 to 255 are bytes, the last four are special."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    names = {chr(b if b in printable else next(spare)): b for b in range(256)}
    special = {
        vocab - 4: "</think>",
        vocab - 3: "<|pad|>",
        vocab - 2: "<|mask|>",
        vocab - 1: "<|im_end|>",
    }
    names |= {special.get(i, f"<unused{i}>"): i for i in range(256, vocab)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, **flags, "special": text != "</think>"}
            for i, text in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": names,
            "merges": [],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=("bf16", "q4", "q8"), default="bf16")
    parser.add_argument("--sparse", action="store_true", help="write holes instead of data")
    parser.add_argument("--per-expert", action="store_true", help="one tensor an expert")
    parser.add_argument("--shards", type=int, default=1, help="files; above 1 with an index")
    args = vars(parser.parse_args())
    form = Format(args.pop("format"))
    if form is Format.BF16:
        make_release(**args)
    elif args["sparse"] or args["per_expert"] or args["shards"] > 1:
        parser.error("--sparse, --per-expert and --shards are for bf16")
    else:
        make_packed(args["out"], form, args["layers"], args["vocab"], args["seed"])


if __name__ == "__main__":
    main()
