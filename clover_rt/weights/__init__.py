"""Checkpoints on disk as weights that are read when they are touched."""

from clover_rt.weights.checkpoint import Checkpoint
from clover_rt.weights.load import load_weights
from clover_rt.weights.packed import PackedView, View, check_scales

__all__ = ["Checkpoint", "PackedView", "View", "check_scales", "load_weights"]
