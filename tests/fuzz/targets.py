"""What is spoiled, and what must still hold: a refusal by one CloverError, or the right tensors."""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors import SafetensorError

from clover_rt import builtin
from clover_rt.errors import CloverError
from clover_rt.model.build import Capacity, build_graph
from clover_rt.spec import HostWeight, StepLayout
from clover_rt.text import Template, Tokenizer
from clover_rt.weights import Checkpoint, load_weights
from tests.fuzz.mutations import spoil_bytes, spoil_json, spoil_value
from tests.unit import checkpoints

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
GENERATION = {
    "eos_token_id": [19, 17],
    "pad_token_id": 16,
    "stop_token_ids": [15],
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.9,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.1,
    "dllm_length_penalty": 6.0,
    "dllm_length_penalty_start": 40,
    "dllm_length_penalty_window": 40,
    "dllm_think_end_bias": 9.0,
    "dllm_think_end_token_id": 14,
}
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a</think>b"}]

Raw = dict[str, tuple[str, tuple[int, ...], bytes]]


class Broken(AssertionError):
    """A mutant that was handled wrongly."""


class Target:
    """A kind of file: `make(folder)` writes sound ones, `spoil(rng)` writes a mutant's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.make()

    def make(self) -> None:
        checkpoints.write(self.folder, generation=GENERATION)

    def spoil(self, rng: random.Random) -> None:
        raise NotImplementedError

    def check(self) -> bool:
        """Open the mutant; return whether it opened. Raises Broken."""
        try:
            opened = Checkpoint.open(self.folder)
            weights = load_weights(opened)
            build_graph(opened.config, weights, Capacity(2, 64, 2, 1, StepLayout()))
        except CloverError as error:
            refused(error)
            opened_but_unfit(self.folder)
            return False
        right_settings(opened)
        raw = read_all(self.folder, opened)
        right_tensors(opened, raw)
        right_weights(opened, weights, raw)
        return True


class Headers(Target):
    """The header of a safetensors file as JSON, and the file's bytes around it."""

    def make(self) -> None:
        super().make()
        blob = (self.folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", blob[:8])
        self.header = json.loads(blob[8 : 8 + length])
        self.data, self.blob, self.end = blob[8 + length :], blob, 8 + length

    def spoil(self, rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.4:
            text = spoil_json(rng, self.header)
            blob = struct.pack("<Q", len(text)) + text + self.data
        elif kind < 0.6:
            blob = self.swapped(rng)
        elif kind < 0.9:
            blob = spoil_bytes(rng, self.blob, 0, self.end)
        else:
            blob = spoil_bytes(rng, self.blob)
        (self.folder / WEIGHTS).write_bytes(blob)

    def swapped(self, rng: random.Random) -> bytes:
        """Return a file whose header places tensors elsewhere, with sound ranges at times."""
        header = json.loads(json.dumps(self.header))
        names = [n for n in header if n != "__metadata__"]
        a, b = rng.sample(names, 2)
        field = rng.choice(["data_offsets", "shape", "dtype", "copy", "twice", None])
        if field is None:
            header[a], header[b] = header[b], header[a]
        elif field == "copy":
            header[a] = dict(header[b])
        elif field == "twice":
            text = json.dumps({a: header[b]})[:-1] + ", " + json.dumps(header)[1:]
            return checkpoints.with_header(text.encode(), self.data)
        else:
            header[a][field], header[b][field] = header[b][field], header[a][field]
        if rng.random() < 0.5:
            header[a]["shape"] = rng.sample(header[a]["shape"], len(header[a]["shape"]))
        if rng.random() < 0.3:
            header[a]["dtype"] = rng.choice(["F16", "BF16", "I16", "F32", "F8_E4M3", "F4"])
        return checkpoints.with_header(header, self.data)


class Configs(Target):
    """config.json, flat or nested."""

    def spoil(self, rng: random.Random) -> None:
        fields = checkpoints.config()
        if rng.random() < 0.3:
            fields = {"model_type": fields["model_type"], "text_config": fields}
        (self.folder / "config.json").write_bytes(spoil_json(rng, fields))


class GenerationConfigs(Target):
    """generation_config.json."""

    def spoil(self, rng: random.Random) -> None:
        (self.folder / "generation_config.json").write_bytes(spoil_json(rng, GENERATION))


class Indexes(Target):
    """The index of a checkpoint in two shards."""

    def make(self) -> None:
        checkpoints.write(self.folder, generation=GENERATION, shards=2)
        self.index = json.loads((self.folder / INDEX).read_text())
        self.shards = sorted(set(self.index["weight_map"].values()))

    def spoil(self, rng: random.Random) -> None:
        index = json.loads(json.dumps(self.index))
        if rng.random() < 0.4:
            names = rng.sample(list(index["weight_map"]), rng.randint(1, 3))
            for name in names:
                index["weight_map"][name] = rng.choice([*self.shards, "config.json", "absent"])
            (self.folder / INDEX).write_text(json.dumps(index))
        else:
            (self.folder / INDEX).write_bytes(spoil_json(rng, index))


class TokenizerConfigs(Target):
    """tokenizer_config.json, the chat template in it included."""

    def make(self) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(builtin.path() / name, self.folder)
        self.tokenizer = Tokenizer.load(self.folder)
        self.settings = json.loads((self.folder / "tokenizer_config.json").read_text())

    def spoil(self, rng: random.Random) -> None:
        settings = dict(self.settings)
        kind = rng.random()
        if kind < 0.5:
            source = spoil_bytes(rng, settings["chat_template"].encode())
            settings["chat_template"] = source.decode(errors="replace")
        elif kind < 0.6:
            source = settings["chat_template"]
            settings["chat_template"] = [{"name": "default", "template": source}]
        blob = json.dumps(settings).encode() if kind < 0.4 else spoil_json(rng, settings)
        (self.folder / "tokenizer_config.json").write_bytes(blob)

    def check(self) -> bool:
        try:
            template = Template.load(self.folder, self.tokenizer)
            ids = template.encode(MESSAGES) if template is not None else []
        except CloverError as error:
            refused(error)
            return False
        if not all(0 <= i < self.tokenizer.size for i in ids):
            raise Broken(f"ids outside the vocabulary: {ids}")
        return True


class Tokenizers(TokenizerConfigs):
    """tokenizer.json."""

    def make(self) -> None:
        super().make()
        self.whole = json.loads((self.folder / "tokenizer.json").read_text())

    def spoil(self, rng: random.Random) -> None:
        path = self.folder / "tokenizer.json"
        if rng.random() < 0.3:
            blob = (builtin.path() / "tokenizer.json").read_bytes()
            path.write_bytes(spoil_bytes(rng, blob))
            return
        whole = json.loads(json.dumps(self.whole))
        # most of the file is the vocabulary: the parts around it are the interesting ones
        parts = {k: v for k, v in whole.items() if k != "model"} | {"model": whole["model"]}
        if rng.random() < 0.7:
            spoil_value(rng, {k: v for k, v in parts.items() if k != "model"})
        else:
            spoil_value(rng, whole["model"])
        path.write_text(json.dumps(whole))

    def check(self) -> bool:
        try:
            tokenizer = Tokenizer.load(self.folder)
            template = Template.load(self.folder, tokenizer)
            ids = template.encode(MESSAGES) if template is not None else []
            tokenizer.decode(ids)
        except CloverError as error:
            refused(error)
            return False
        return True


TARGETS: dict[str, type[Target]] = {
    "headers": Headers,
    "configs": Configs,
    "generation-configs": GenerationConfigs,
    "indexes": Indexes,
    "tokenizer-configs": TokenizerConfigs,
    "tokenizers": Tokenizers,
}


def refused(error: CloverError) -> None:
    """A mutant is the user's file: exit code 2, with a sentence in each part."""
    if error.exit_code != 2:
        raise Broken(f"exit code {error.exit_code}: {error}") from error
    if not (error.what and error.evidence and error.fix and error.code.startswith("CRT-1")):
        raise Broken(f"an error without its parts: {error}") from error


def read_all(folder: Path, opened: Checkpoint) -> dict[str, Raw]:
    """Return file -> tensors as the safetensors package reads them."""
    out: dict[str, Raw] = {}
    for path in sorted({v.file.path for v in opened.tensors.values()}):
        try:
            entries = safetensors.deserialize(path.read_bytes())
        except SafetensorError as error:
            raise Broken(f"{path.name} opened, but safetensors says {error}") from error
        out[path.name] = {n: (e["dtype"], tuple(e["shape"]), bytes(e["data"])) for n, e in entries}
    return out


def opened_but_unfit(folder: Path) -> None:
    """Where a checkpoint opens and its tensors do not fit, they are still the right ones."""
    try:
        opened = Checkpoint.open(folder)
    except CloverError:
        return
    right_tensors(opened, read_all(folder, opened))


def right_tensors(opened: Checkpoint, raw: dict[str, Raw]) -> None:
    for name, view in opened.tensors.items():
        dtype, shape, data = raw[view.file.path.name][name]
        if (view.dtype, view.shape) != (dtype, shape):
            raise Broken(f"{name} is {view.dtype} {view.shape}, safetensors: {dtype} {shape}")
        if view.format is not None and view.array.tobytes() != data:
            raise Broken(f"{name} has other values than safetensors reads")
    index = opened.folder / INDEX
    if index.is_file():
        weight_map = json.loads(index.read_bytes())["weight_map"]
        for name, view in opened.tensors.items():
            if view.file.path.name != weight_map.get(name, view.file.path.name):
                raise Broken(f"{name} is not read from the shard that the index names")


def right_weights(opened: Checkpoint, weights: dict[str, HostWeight], raw: dict[str, Raw]) -> None:
    """Every weight of the graph holds its tensor's bytes, in the order of the file layout."""
    config = opened.config
    for logical, weight in weights.items():
        pieces = [np.asarray(p.codes) for p in weight.pieces]
        got = b"".join(p.tobytes() for p in pieces)
        view = opened.tensors.get(weight.name)
        if view is None:
            raise Broken(f"{logical} comes from {weight.name}, which does not exist")
        data = raw[view.file.path.name][weight.name][2]
        part = logical.rsplit(".", 1)[-1]
        stored = np.frombuffer(data, np.uint8)
        if part in ("q", "gate"):
            heads = stored.reshape(config.heads, 2, -1)
            data = heads[:, ("q", "gate").index(part)].tobytes()
        elif part in ("expert_gate", "expert_up"):
            experts = stored.reshape(config.experts, 2, -1)
            data = experts[:, ("expert_gate", "expert_up").index(part)].tobytes()
        if got != data:
            raise Broken(f"{logical} does not hold the values of {weight.name}")
        if math.prod(weight.shape) * pieces[0].itemsize != len(data):
            raise Broken(f"{logical} {weight.shape} does not hold all of {weight.name}")


def right_settings(opened: Checkpoint) -> None:
    """What was accepted is within what the rest of the program relies on."""
    config, generation = opened.config, opened.generation
    ids = [*generation.stop_ids, *config.eos_token_ids]
    if config.block is not None:
        ids.append(config.block.mask_token_id)
        if not 1 <= config.block.block_size <= 256 or not 0 <= config.block.threshold <= 1:
            raise Broken(f"block settings {config.block}")
    if generation.controls.think_end >= 0:
        ids.append(generation.controls.think_end)
    if not all(0 <= i < config.vocab_size for i in ids):
        raise Broken(f"ids outside the vocabulary: {ids}")
    numbers: list[Any] = [config.eps, config.rope_theta, generation.temperature, generation.top_p]
    controls = generation.controls
    numbers += [controls.frequency, controls.presence, controls.repetition]
    numbers += [controls.length_penalty, controls.think_bias]
    if not all(math.isfinite(n) for n in numbers) or controls.repetition <= 0:
        raise Broken(f"numbers that are not finite: {numbers}")
    if config.heads % config.kv_heads or config.value_heads % config.key_heads:
        raise Broken("heads that do not divide")
