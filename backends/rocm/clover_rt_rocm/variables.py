"""Variables that change what AMD's libraries see, and whether an override fits the cards."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
# HIP reads the third as it reads the second
VISIBILITY = (
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "GPU_DEVICE_ORDINAL",
)
WATCHED = (
    *VISIBILITY,
    *("HSA_ENABLE_DXG_DETECTION", "HSA_ENABLE_SDMA"),
    *("AMD_SERIALIZE_KERNEL", "HIP_LAUNCH_BLOCKING", "PYTORCH_HIP_ALLOC_CONF"),
    *("PYTORCH_ALLOC_CONF", "TRITON_CACHE_DIR", "TRITON_INTERPRET", "OCL_ICD_VENDORS"),
)
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the watched variables that are set, overrides for single nodes included."""
    return tuple(n for n in sorted(environ) if n in WATCHED or n.startswith(OVERRIDE))


def told(environ: Mapping[str, str] | None = None) -> str:
    """Return what is set, for the message of a failure."""
    environ = os.environ if environ is None else environ
    return ", ".join(f"{n}={environ[n]}" for n in names(environ)) or "no override set"


def wrong_override(environ: Mapping[str, str], topology: Path = TOPOLOGY) -> str:
    """Return how HSA_OVERRIDE_GFX_VERSION contradicts a card that it reaches, else "".

    The compute driver tells the architecture that a card has; the library above it believes the
    override. Where the driver tells nothing (WSL) nothing is known.
    """
    for node, arch in sorted(architectures(topology).items()):
        name = f"{OVERRIDE}_{node}" if f"{OVERRIDE}_{node}" in environ else OVERRIDE
        if name in environ and gfx_of(environ[name]) != arch:
            return f"{name}={environ[name]} is set, but the card of node {node} is {arch}; unset it"
    return ""


def architectures(topology: Path) -> dict[int, str]:
    """Return the architecture of each GPU by its node in the compute driver's topology."""
    found = {}
    for path in topology.glob("*/properties") if topology.is_dir() else ():
        try:
            match = re.search(r"^gfx_target_version (\d+)$", path.read_text(), re.M)
        except OSError:
            continue
        version = int(match[1]) if match else 0
        # 120001 is gfx1201, 90010 is gfx90a
        if version and path.parent.name.isdigit():
            arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            found[int(path.parent.name)] = arch
    return found


def gfx_of(version: str) -> str:
    """Return the architecture of an override such as 11.0.0 (gfx1100); "" for a malformed one."""
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})\.(\d{1,2})", version.strip())
    return "" if match is None else f"gfx{match[1]}{int(match[2]):x}{int(match[3]):x}"
