"""What a checkpoint would take on a backend, without loading it."""

from __future__ import annotations

import os
from typing import Any

from clover_rt import fit
from clover_rt.api.loading import open_model
from clover_rt.engine import Settings
from clover_rt.weights import load_weights


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
    opened = open_model(
        path,
        backend=backend,
        device=device,
        precision=precision,
        context=context,
        slots=slots,
        must_fit=False,
    )
    try:
        return fit.report(
            opened.source.config,
            load_weights(opened.source.checkpoint),
            opened.device,
            opened.host,
            fit.Setting(opened.precision, slots, Settings().prefill_chunk),
            opened.capacity.context,
        )
    finally:
        opened.close()
