#!/usr/bin/env python3
"""Measure the Python overhead of a pass: 40 layers whose steps do nothing.

    plan_overhead.py [--layers 40] [--repeats 200]

Times `Plan.run` from the table of segments to the decoded picks: encoding, upload, every step,
download. The graph has the release's layer pattern and tiny sizes; the device's kernels are bound
to a step that returns at once. `fused` runs layer ops, `composed` runs every primitive as a step
of its own. Prints one JSON object; the exit status is 1 if a median exceeds the limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from machine import environment

from clover_rt.backend import Buffer, Device, Kernel, Tensor, Usage
from clover_rt.graph import Graph
from clover_rt.model.build import Capacity, build_graph
from clover_rt.model.config import parse_config
from clover_rt.ops import OPS
from clover_rt.plan import Plan, bind
from clover_rt.spec import (
    Controls,
    HostWeight,
    Kind,
    Pass,
    Segment,
    Signature,
    StepLayout,
    Tier,
    Wanted,
    Weight,
)
from clover_rt.spec.weight import Format

LIMIT_US = 1000.0
