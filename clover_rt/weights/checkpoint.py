"""Checkpoint: a folder with a model's configuration and its weights, opened but not read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clover_rt.errors import BadCheckpoint
from clover_rt.model.config import ModelConfig
from clover_rt.model.generation import GenerationConfig
from clover_rt.model.names import SKIPPED, detect_prefix, preview_names
from clover_rt.weights.folder import open_tensors
from clover_rt.weights.json_file import read_object
from clover_rt.weights.packed import View, join_parts

CONFIG = "config.json"
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. Files stay mapped read only while it, or a view into it, lives.

    folder           where it lies
    config           the model's shape
    generation       defaults of decoding
    prefix           what the trunk's tensor names begin with
    tensors          name -> view, without the skipped ones; one for the parts of a quantised one
    skipped          tensors of parts that are not run: name pattern -> count
    missing_preview  full names of the preview's tensors where the file of a block-diffusion model
                     has none of them, so that only `ar` can run; else empty
    warnings         what is odd about the files and yet no error, a sentence each
    """

    folder: Path
    config: ModelConfig
    generation: GenerationConfig
    prefix: str
    tensors: Mapping[str, View]
    skipped: Mapping[str, int]
    missing_preview: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, without the skipped ones."""
        return sum(view.nbytes for view in self.tensors.values())

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> Checkpoint:
        """Read a folder's configuration and headers, and map its weights.

        Raises BadCheckpoint: CRT-1101 not a folder, CRT-1102 no config.json, and those of
        `read_object`, `ModelConfig.parse`, `GenerationConfig.parse`, `open_tensors` and
        `join_parts`. Whether the tensors fit the configuration is checked by `load_weights`.
        """
        path = Path(folder)
        if not path.is_dir():
            kind = "is a file" if path.exists() else "does not exist"
            raise BadCheckpoint(
                what=f"no checkpoint can be opened at {path}",
                evidence=f"{path} {kind}; a folder is needed",
                fix=f"give the folder that holds {CONFIG} and the safetensors files",
                code="CRT-1101",
            )
        if not (path / CONFIG).is_file():
            found = sorted(p.name for p in path.iterdir())[:10]
            raise BadCheckpoint(
                what=f"no checkpoint can be opened at {path}",
                evidence=f"the folder has no {CONFIG}; it has: {', '.join(found) or 'nothing'}",
                fix=f"give the folder that holds {CONFIG} and the safetensors files",
                code="CRT-1102",
            )
        config = ModelConfig.parse(read_object(path / CONFIG), str(path / CONFIG))
        has_defaults = (path / GENERATION).is_file()
        defaults = read_object(path / GENERATION) if has_defaults else {}
        generation = GenerationConfig.parse(defaults, config, str(path / GENERATION))
        stored, warnings = open_tensors(path)
        skipped = Counter(_skipped_as(name) for name in stored)
        del skipped[""]
        if skipped:
            stored = {n: view for n, view in stored.items() if not n.startswith(SKIPPED)}
        tensors = join_parts(stored)
        prefix = detect_prefix(tensors)
        preview = [prefix + name for name in preview_names(config)]
        is_missing = not any(name in tensors for name in preview)
        return Checkpoint(
            folder=path,
            config=config,
            generation=generation,
            prefix=prefix,
            tensors=tensors,
            skipped=dict(skipped),
            missing_preview=tuple(preview) if is_missing else (),
            warnings=tuple(warnings),
        )


def _skipped_as(name: str) -> str:
    """Return the pattern by which a tensor is skipped, or "" for one that is read."""
    if not name.startswith(SKIPPED):
        return ""
    return next(prefix for prefix in SKIPPED if name.startswith(prefix)) + "*"
