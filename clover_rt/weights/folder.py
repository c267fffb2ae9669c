"""Which files of a folder hold a checkpoint's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clover_rt.errors import BadCheckpoint
from clover_rt.weights.json_file import Pairs, read_object
from clover_rt.weights.tensor_file import TensorFile, TensorView

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHOWN = 10
MAX_NAME = 255
"""Bytes of a file's name that systems take."""


def open_tensors(folder: Path) -> tuple[dict[str, TensorView], list[str]]:
    """Return name -> view of every tensor of a folder's checkpoint, and warnings as sentences.

    An index decides where there is one, and other files are ignored; else `model.safetensors` is
    the checkpoint. Where two shards hold a tensor, the index decides which is read, and a warning
    tells. Raises BadCheckpoint: CRT-1104 no weights, CRT-1155 a name in two shards that the index
    does not decide, CRT-1148 a malformed index, CRT-1149 missing shards (all are listed), CRT-1150
    tensors that the index places in a shard that lacks them, and those of `TensorFile`.
    """
    if (folder / INDEX).is_file():
        return _open_shards(folder)
    if (folder / SINGLE).is_file():
        return _views(TensorFile(folder / SINGLE)), []
    found = sorted(p.name for p in folder.glob("*.safetensors"))
    seen = f"safetensors files there: {', '.join(found[:SHOWN]) or 'none'}"
    raise BadCheckpoint(
        what=f"no weights were found in {folder}",
        evidence=f"neither {SINGLE} nor {INDEX}; {seen}",
        fix="download the weights, with the index if they are in several files",
        code="CRT-1104",
    )


def _views(file: TensorFile) -> dict[str, TensorView]:
    return {name: TensorView(file, entry) for name, entry in file.entries.items()}


def _open_shards(folder: Path) -> tuple[dict[str, TensorView], list[str]]:
    weight_map = _read_index(folder / INDEX)
    shards = sorted(set(weight_map.values()))
    missing = [s for s in shards if not (folder / s).is_file()]
    if missing:
        raise BadCheckpoint(
            what=f"the checkpoint in {folder} is not complete",
            evidence=f"{INDEX} lists {len(shards)} shards; {len(missing)} are missing: "
            + ", ".join(missing[:SHOWN])
            + (" ..." if len(missing) > SHOWN else ""),
            fix="download the missing files into the folder",
            code="CRT-1149",
        )
    tensors: dict[str, TensorView] = {}
    twice: list[str] = []
    for shard in shards:
        for name, view in _views(TensorFile(folder / shard)).items():
            held = tensors.get(name)
            if held is not None:
                if name not in weight_map:
                    raise _undecided(name, held.file.path.name, shard)
                twice.append(name)
            if held is None or weight_map[name] == shard:
                tensors[name] = view
    absent = [
        (name, shard)
        for name, shard in weight_map.items()
        if name not in tensors or tensors[name].file.path.name != shard
    ]
    if absent:
        shown = "; ".join(f"{name!r} should be in {shard}" for name, shard in absent[:SHOWN])
        raise BadCheckpoint(
            what=f"{INDEX} does not fit the shards",
            evidence=f"{len(absent)} tensors are not in the shard that it names: {shown}"
            + (" ..." if len(absent) > SHOWN else ""),
            fix="download the index and the shards again, from the same revision",
            code="CRT-1150",
        )
    return tensors, _warnings(twice, tensors)


def _warnings(twice: list[str], tensors: dict[str, TensorView]) -> list[str]:
    if not twice:
        return []
    name = twice[0]
    several = f"{len(set(twice))} tensors are in two shards, such as {name!r}"
    return [f"{several}: {INDEX} decides, and it is read from {tensors[name].file.path.name}"]


def _undecided(name: str, first: str, second: str) -> BadCheckpoint:
    return BadCheckpoint(
        what="the checkpoint has two tensors of one name",
        evidence=f"{name!r} is in {first} and in {second}; {INDEX} does not decide",
        fix="remove the copy that does not belong, or download the files again",
        code="CRT-1155",
    )


def _read_index(path: Path) -> dict[str, str]:
    """Return name -> shard; shards are plain names of files beside the index."""
    weight_map = read_object(path, _decided).get("weight_map")
    problem = ""
    if not isinstance(weight_map, dict) or not weight_map:
        problem = "weight_map is not an object with an entry a tensor"
    else:
        for name, shard in weight_map.items():
            # an index must not lead out of its folder
            if not isinstance(shard, str) or not _is_plain(shard):
                problem = f"weight_map[{name!r}] = {shard!r} is not the name of a file"
                break
    if problem or not isinstance(weight_map, dict):
        raise BadCheckpoint(
            what=f"{path.name} cannot be used",
            evidence=f"{path}: {problem}",
            fix="download the index again",
            code="CRT-1148",
        )
    return weight_map


def _is_plain(shard: str) -> bool:
    """Is this the name of a file, with nothing that leads elsewhere or that no system takes?"""
    if not shard.isprintable() or len(shard.encode()) > MAX_NAME:
        return False
    return shard not in ("", "..") and Path(shard).name == shard


def _decided(pairs: Pairs) -> dict[str, Any]:
    """Return an object of the index; one that places a tensor twice does not decide."""
    out: dict[str, Any] = {}
    for name, value in pairs:
        if isinstance(value, str) and out.get(name, value) != value:
            raise _undecided(name, str(out[name]), value)
        out[name] = value
    return out
