"""Checkpoints on disk as weights that are read when they are touched."""

from clover_rt.weights.checkpoint import Checkpoint
from clover_rt.weights.load import load_weights

__all__ = ["Checkpoint", "load_weights"]
