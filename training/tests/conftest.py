"""Finds the training package, the runtime and the float64 oracle of its tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "training"), str(ROOT / "tests" / "reference")]
