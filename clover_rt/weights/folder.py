"""Which files of a folder hold a checkpoint's weights."""

from __future__ import annotations

from pathlib import Path

from clover_rt.errors import BadCheckpoint
from clover_rt.weights.json_file import read_object
from clover_rt.weights.tensor_file import TensorFile, TensorView

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHOWN = 10


def open_tensors(folder: Path) -> dict[str, TensorView]:
    """Return name -> view of every tensor of a folder's checkpoint.

    An index decides where there is one, and other files are ignored; else `model.safetensors` is
    the checkpoint. Raises BadCheckpoint: CRT-1104 no weights, CRT-1147 a name in two shards,
    CRT-1148 a malformed index, CRT-1149 missing shards (all are listed), CRT-1150 tensors that the
    index places in a shard that lacks them, and those of `TensorFile`.
    """
    if (folder / INDEX).is_file():
        return _open_shards(folder)
    if (folder / SINGLE).is_file():
        return _views(TensorFile(folder / SINGLE))
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


def _open_shards(folder: Path) -> dict[str, TensorView]:
    weight_map = _read_index(folder / INDEX)
    shards = sorted(set(weight_map.values()))
    missing = [s for s in shards if not (folder / s).is_file()]
    if missing:
        raise BadCheckpoint(
            what=f"the checkpoint in {folder} is not complete",
            evidence=f"{INDEX} lists {len(shards)} shards; {len(missing)} are missing: "
            + ", ".join(missing),
            fix="download the missing files into the folder",
            code="CRT-1149",
        )
    tensors: dict[str, TensorView] = {}
    for shard in shards:
        fresh = _views(TensorFile(folder / shard))
        twice = tensors.keys() & fresh.keys()
        if twice:
            name = min(twice)
            raise BadCheckpoint(
                what="the checkpoint has two tensors of one name",
                evidence=f"{name!r} is in {tensors[name].file.path.name} and in {shard}"
                + (f"; {len(twice)} such names" if len(twice) > 1 else ""),
                fix="remove the copy that does not belong, or download the files again",
                code="CRT-1147",
            )
        tensors |= fresh
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
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    """Return name -> shard; shards are plain names of files beside the index."""
    weight_map = read_object(path).get("weight_map")
    problem = ""
    if not isinstance(weight_map, dict) or not weight_map:
        problem = "weight_map is not an object with an entry a tensor"
    else:
        for name, shard in weight_map.items():
            # an index must not lead out of its folder
            if not isinstance(shard, str) or not shard or Path(shard).name != shard:
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
