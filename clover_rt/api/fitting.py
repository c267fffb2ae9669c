"""What a checkpoint would take on a backend, without loading it."""

from __future__ import annotations

import os
from typing import Any

from clover_rt import fit
from clover_rt.api.choices import choice
from clover_rt.api.loading import _context, find
from clover_rt.engine import Settings
from clover_rt.errors import BadInput
from clover_rt.plugins import open_device
from clover_rt.spec import Precision
from clover_rt.weights import Checkpoint, load_weights


def fits(
    path: str | os.PathLike[str] | None = None,
    *,
    backend: str = "cpu",
    device: str | None = None,
    precision: str = "exact",
    context: int | None = None,
    slots: int = 2,
) -> dict[str, Any]:
    """Return the memory that `load` with these settings takes, and what fits where, in bytes.

    Only configuration and headers are read. The keys are those of `clover_rt.fit.report`.
    Raises BadInput, BadCheckpoint, BackendUnavailable or Unsupported, as `load` does.
    """
    numerics = choice("precision", precision, Precision)
    if slots < 1:
        raise BadInput(
            what=f"slots={slots} was given",
            evidence="at least one is needed",
            fix="use slots=2",
            code="CRT-1019",
        )
    checkpoint = Checkpoint.open(find(path))
    config = checkpoint.config
    opened = open_device(backend, device)[1]
    host = opened if backend == "cpu" else open_device("cpu")[1]
    try:
        tokens = _context(context, config, opened, numerics, checkpoint.nbytes)
        setting = fit.Setting(numerics, slots, Settings().prefill_chunk)
        return fit.report(config, load_weights(checkpoint), opened, host, setting, tokens)
    finally:
        for each in {id(d): d for d in (opened, host)}.values():
            each.close()
