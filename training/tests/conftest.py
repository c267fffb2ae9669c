"""Finds the training package, and the float64 oracle of the runtime's tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "training"), str(ROOT / "tests" / "reference")]
