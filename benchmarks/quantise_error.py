"""Errors of q8 and q4 beside Q8_0 and Q4_0 of llama.cpp, and the rate of the encoder.

    python benchmarks/quantise_error.py [CHECKPOINT] [--rows N]

Needs the `gguf` package for the comparison. Every quantised tensor of the checkpoint is encoded in
groups of 32, at most N rows of each, by both; the error is the root of the mean square relative to
the weights. The rate is bytes of bf16 input a second of processor time, for one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import gguf
import numpy as np

from clover_rt.api.source import open_source
from clover_rt.bench.machine import environment
from clover_rt.quantise.encode import Encoder, floats
from clover_rt.quantise.rules import choose
from clover_rt.spec import Format, Weight

PEERS = {
    Format.Q4: gguf.GGMLQuantizationType.Q4_0,
    Format.Q8: gguf.GGMLQuantizationType.Q8_0,
}
GROUP = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--rows", type=int, default=4096)
    given = parser.parse_args()
    checkpoint = open_source(given.checkpoint).checkpoint
    out: dict[str, Any] = {
        "machine": environment(),
        "checkpoint": checkpoint.folder.name,
        "rows": given.rows,
        "formats": {},
    }
    for storage in PEERS:
        choices = choose(checkpoint, storage, GROUP, [])
        chosen = [c for c in choices if c.format is not None]
        sources = [c.view.array.reshape(-1, c.view.shape[-1])[: given.rows] for c in chosen]
        out["formats"][storage.value] = compared(storage, sources)
    print(json.dumps(out, indent=1))


def compared(storage: Format, sources: list[Any]) -> dict[str, Any]:
    """Return the errors over all tensors, the worst ratio of one tensor, and the rate."""
    encoder = Encoder(storage, GROUP)
    encoder.encode(sources[0][:1])
    ours = theirs = size = taken = 0.0
    ratios = []
    for source in sources:
        started = time.process_time()
        codes, scale = encoder.encode(source)
        taken += time.process_time() - started
        values = floats(source)
        made = Weight(storage, values.shape, codes, scale, None, GROUP).values(np.float32)
        peer = gguf.quantize(values, PEERS[storage])
        back = gguf.dequantize(peer, PEERS[storage])
        errors = [float(np.square(x - values).sum(dtype=np.float64)) for x in (made, back)]
        ratios.append(errors[0] / errors[1] if errors[1] else float(errors[0] > 0))
        ours, theirs = ours + errors[0], theirs + errors[1]
        size += float(np.square(values).sum(dtype=np.float64))
    return {
        "relative_error": (ours / size) ** 0.5,
        "peer": PEERS[storage].name,
        "peer_relative_error": (theirs / size) ** 0.5,
        "worst_squared_error_ratio": max(ratios),
        "megabytes_a_second_and_thread": sum(s.size for s in sources) * 2 / taken / 1e6,
    }


if __name__ == "__main__":
    main()
