"""Checkpoint folders that are damaged on purpose, each in one way."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden import checkpoint

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7000000000\n"
NORM = "model.norm.weight"
QKV = "model.layers.0.linear_attn.in_proj_qkv.weight"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
PREVIEW = ("conv_right_weight", "bd_softmax_")

Header = dict[str, Any]


@dataclass(frozen=True)
class Bad:
    """A way to damage a copy of `clover_tiny`, and what the error must say.

    words  parts of the evidence
    """

    damage: Callable[[Path], object]
    code: str
    words: tuple[str, ...]


def copy(folder: Path, name: str = "clover_tiny") -> Path:
    """Return a fresh copy of a golden checkpoint inside `folder`."""
    return Path(shutil.copytree(checkpoint(name), folder / name))


def config(**changes: Any) -> Callable[[Path], None]:
    """Return a damage: these fields of config.json changed, None removes one."""
    return lambda folder: edit(folder / "config.json", **changes)


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON object in a file; None removes one."""
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))


def put(name: str, blob: bytes | str) -> Callable[[Path], None]:
    """Return a damage: a file with these bytes."""
    data = blob.encode() if isinstance(blob, str) else blob
    return lambda folder: (folder / name).write_bytes(data) and None


def drop(name: str) -> Callable[[Path], None]:
    """Return a damage: a file less."""
    return lambda folder: (folder / name).unlink()


def cut(count: Callable[[int], int]) -> Callable[[Path], None]:
    """Return a damage: the first count(size) bytes of the weights."""

    def damage(folder: Path) -> None:
        blob = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(blob[: count(len(blob))])

    return damage


def parts(path: Path) -> tuple[Header, bytes]:
    """Return header and data of a safetensors file."""
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


def join(path: Path, header: Header | bytes, data: bytes) -> None:
    """Write a safetensors file from its parts."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def header(change: Callable[[Header], object]) -> Callable[[Path], None]:
    """Return a damage: a header changed in place, the data as it was."""

    def damage(folder: Path) -> None:
        entries, data = parts(folder / WEIGHTS)
        change(entries)
        join(folder / WEIGHTS, entries, data)

    return damage


def entry(name: str, **changes: Any) -> Callable[[Path], None]:
    """Return a damage: fields of one tensor's entry in the header changed."""
    return header(lambda entries: entries[name].update(changes))


def keep(folder: Path, source: Path, names: list[str], path: Path) -> None:
    """Write a sound file with these tensors of another one."""
    entries, data = parts(source)
    out: Header = {}
    blobs: list[bytes] = []
    end = 0
    for name in names:
        first, last = entries[name]["data_offsets"]
        blobs.append(data[first:last])
        out[name] = entries[name] | {"data_offsets": [end, end + last - first]}
        end += last - first
    join(path, out, b"".join(blobs))


def without(*parts_of_names: str) -> Callable[[Path], None]:
    """Return a damage: the tensors whose names hold one of these are not there."""

    def damage(folder: Path) -> None:
        path = folder / WEIGHTS
        entries, _ = parts(path)
        wanted = (n for n in entries if n != "__metadata__")
        names = [n for n in wanted if not any(p in n for p in parts_of_names)]
        keep(folder, path, names, path)

    return damage


def shard(folder: Path, both: tuple[str, ...] = ()) -> dict[str, str]:
    """Split the weights over two files with an index, `both` in each; return the index's map."""
    source = folder / WEIGHTS
    names = [n for n in parts(source)[0] if n != "__metadata__"]
    halves = names[::2], names[1::2]
    for half, name in zip(halves, SHARDS, strict=True):
        extra = [n for n in both if n not in half]
        keep(folder, source, half + extra, folder / name)
    source.unlink()
    weight_map = dict.fromkeys(halves[0], SHARDS[0]) | dict.fromkeys(halves[1], SHARDS[1])
    index(folder, weight_map)
    return weight_map


def index(folder: Path, weight_map: Any) -> None:
    """Write an index."""
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def undecided(folder: Path) -> None:
    """A tensor in both shards that the index does not name."""
    weight_map = shard(folder, (NORM,))
    del weight_map[NORM]
    index(folder, weight_map)


def absent_shard(folder: Path) -> None:
    shard(folder)
    (folder / SHARDS[1]).unlink()


def lacking_shard(folder: Path) -> None:
    index(folder, shard(folder) | {NORM: SHARDS[0]} | {QKV: SHARDS[0]})


def outside_shard(folder: Path) -> None:
    index(folder, shard(folder) | {NORM: "../" + SHARDS[0]})


def swapped(entries: Header) -> None:
    first, last = entries[NORM]["data_offsets"]
    entries[NORM]["data_offsets"] = [last, first]


def overlapping(entries: Header) -> None:
    entries[NORM]["data_offsets"] = [0, 256 if entries[NORM]["dtype"] == "F32" else 128]


def of_length(length: int) -> bytes:
    return struct.pack("<Q", length) + b"{}" * 100


FILES = {
    "a folder that is not there": Bad(shutil.rmtree, "CRT-1101", ("does not exist",)),
    "no config": Bad(drop("config.json"), "CRT-1102", ("has no config.json",)),
    "a config that is not JSON": Bad(
        put("config.json", '{"a": 1,\n b}'), "CRT-1103", ("config.json", "line 2")
    ),
    "a config that is not UTF-8": Bad(put("config.json", b'{"a": "\xff"}'), "CRT-1103", ()),
    "a config that is no object": Bad(put("config.json", "[1]"), "CRT-1106", ("a list",)),
    "an empty config": Bad(put("config.json", ""), "CRT-1103", ("line 1",)),
    "a wrong model_type": Bad(
        config(model_type="llama"), "CRT-1126", ("model_type = 'llama'", "clover_moe")
    ),
    "an unknown algorithm": Bad(
        config(denoising_config={"algorithm": "entropy", "threshold": 0.9}),
        "CRT-1124",
        ("denoising_config.algorithm = 'entropy'", "low_confidence"),
    ),
    "a trained threshold above 1": Bad(
        config(denoising_config={"algorithm": "low_confidence", "threshold": 1.5}),
        "CRT-1123",
        ("threshold = 1.5",),
    ),
    "a mask id outside the vocabulary": Bad(
        config(mask_token_id=320), "CRT-1123", ("mask_token_id = 320", "vocab_size is 320")
    ),
    "no mask id": Bad(config(mask_token_id=None), "CRT-1121", ("mask_token_id is missing",)),
    "a mask id that is ordinary text": Bad(
        config(mask_token_id=65), "CRT-1186", ("mask_token_id 65",)
    ),
    "block size 0": Bad(config(block_size=0), "CRT-1123", ("block_size = 0",)),
    "block size 257": Bad(config(block_size=257), "CRT-1123", ("block_size = 257", "256")),
    "heads that do not divide": Bad(
        config(num_attention_heads=4, num_key_value_heads=3),
        "CRT-1125",
        ("num_attention_heads = 4 is not a multiple of num_key_value_heads = 3",),
    ),
    "value heads that do not divide": Bad(
        config(linear_num_value_heads=5),
        "CRT-1125",
        ("linear_num_value_heads = 5", "linear_num_key_heads = 2"),
    ),
    "an unknown rope type": Bad(
        config(
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.25,
            }
        ),
        "CRT-1124",
        ("rope_type = 'yarn'",),
    ),
    "another hidden size": Bad(
        config(hidden_size=128), "CRT-1162", ("of a wrong shape", "[320, 64], wanted [320, 128]")
    ),
    "more layers": Bad(
        config(num_hidden_layers=8, layer_types=None), "CRT-1160", ("missing", "model.layers.4.")
    ),
    "fewer layers": Bad(
        config(num_hidden_layers=3, layer_types=None), "CRT-1161", ("unknown", "model.layers.3.")
    ),
    "a list of layers of another length": Bad(
        config(num_hidden_layers=5), "CRT-1125", ("4 entries but num_hidden_layers = 5",)
    ),
    "two billion experts": Bad(
        config(num_experts=2**31 - 1), "CRT-1162", ("wanted [2147483647, 64, 64]",)
    ),
    "a context of two billion": Bad(
        config(max_position_embeddings=2**31 - 1), "CRT-1123", ("max_position_embeddings",)
    ),
    "a tensor that is missing": Bad(without(NORM), "CRT-1160", (f"1 missing: {NORM} [64]",)),
    "a tensor of another shape": Bad(
        entry(QKV, shape=[64, 160]), "CRT-1162", (QKV, "[64, 160], wanted [160, 64]")
    ),
    "a tensor that is not known": Bad(
        header(lambda h: h.update({"model.extra": h.pop(NORM)})),
        "CRT-1165",
        ("1 missing", "1 unknown: model.extra"),
    ),
    "a tensor that the index does not decide": Bad(undecided, "CRT-1155", (NORM, *SHARDS)),
    "a tensor of an unknown dtype": Bad(
        entry(NORM, dtype="F31"), "CRT-1145", (NORM, "unknown dtype 'F31'")
    ),
    "a tensor of a dtype that is not read": Bad(
        header(lambda h: h[NORM].update(dtype={"BF16": "I16", "F32": "I32"}[h[NORM]["dtype"]])),
        "CRT-1163",
        (NORM, "wanted F32, F16, BF16"),
    ),
    "an index that names an absent shard": Bad(
        absent_shard, "CRT-1149", ("lists 2 shards; 1 are missing", SHARDS[1])
    ),
    "a shard that lacks its tensor": Bad(lacking_shard, "CRT-1150", ("should be in", SHARDS[0])),
    "an index that leads out of the folder": Bad(outside_shard, "CRT-1148", ("../",)),
    "an index that is not JSON": Bad(put(INDEX, "{"), "CRT-1103", (INDEX,)),
    "no weights": Bad(drop(WEIGHTS), "CRT-1104", ("neither model.safetensors nor",)),
    "weights cut by a byte": Bad(cut(lambda n: n - 1), "CRT-1141", ("1172583 bytes of 1172584",)),
    "weights cut by half": Bad(cut(lambda n: n // 2), "CRT-1141", ("586292 bytes of 1172584",)),
    "empty weights": Bad(cut(lambda n: 0), "CRT-1141", ("has 0 bytes",)),
    "seven bytes of weights": Bad(cut(lambda n: 7), "CRT-1141", ("has 7 bytes",)),
    "weights with a byte behind": Bad(
        lambda f: (f / WEIGHTS).open("ab").write(b"x"), "CRT-1152", ("1172585 bytes",)
    ),
    "a Git LFS pointer": Bad(put(WEIGHTS, POINTER), "CRT-1140", ("Git LFS pointer",)),
    "a Git LFS pointer for the config": Bad(put("config.json", POINTER), "CRT-1140", ()),
    "a header of length 0": Bad(put(WEIGHTS, of_length(0)), "CRT-1142", ("0 bytes",)),
    "a header of an absurd length": Bad(put(WEIGHTS, of_length(2**63)), "CRT-1142", ()),
    "a header longer than the file": Bad(put(WEIGHTS, of_length(2**20)), "CRT-1141", ()),
    "a header that is not UTF-8": Bad(
        lambda f: join(f / WEIGHTS, b'{"\xff": 1}', b""), "CRT-1154", ("not UTF-8",)
    ),
    "a header that is not JSON": Bad(lambda f: join(f / WEIGHTS, b"{,}", b""), "CRT-1143", ()),
    "ranges that overlap": Bad(header(overlapping), "CRT-1137", ("overlaps",)),
    "a range that is reversed": Bad(header(swapped), "CRT-1146", (NORM,)),
    "a range that overflows": Bad(
        entry(NORM, data_offsets=[2**64, 2**64 + 128]), "CRT-1134", (NORM,)
    ),
    "a range past the end": Bad(
        entry(NORM, data_offsets=[2**40, 2**40 + 256]), "CRT-1146", (NORM,)
    ),
    "a broken tokenizer": Bad(put("tokenizer.json", "{"), "CRT-1183", ("tokenizer.json",)),
    "an empty tokenizer": Bad(put("tokenizer.json", "{}"), "CRT-1183", ("tokenizer.json",)),
    "broken settings of the tokenizer": Bad(
        put("tokenizer_config.json", "[]"), "CRT-1181", ("not an object",)
    ),
    "a broken template": Bad(put("chat_template.jinja", "{% for %}"), "CRT-1188", ("line 1",)),
    "a template that is no text": Bad(
        lambda f: edit(f / "tokenizer_config.json", chat_template=5), "CRT-1188", ("int",)
    ),
    "a broken generation_config": Bad(
        put("generation_config.json", '{"top_p": 2}'), "CRT-1123", ("top_p = 2",)
    ),
}
"""Found when the folder is opened, before a device is."""

TEMPLATES = {
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "without end": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "that fills memory": "{% set n = namespace(x='ab') %}" + "{% set n.x = n.x ~ n.x %}" * 60,
    "that looks at Python": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "that reads a file": "{% include '/etc/passwd' %}",
    "that formats": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "that multiplies": "{{ 'x' * 10000000000 }}",
    "that changes what it is given": "{{ messages.clear() }}",
    "that refuses": "{{ raise_exception('no') }}",
}
