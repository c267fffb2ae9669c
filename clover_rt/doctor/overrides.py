"""Variables that change what a GPU library sees: architecture overrides, visibility lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from clover_rt.doctor.findings import Finding, finding
from clover_rt.doctor.gpus import Gpu
from clover_rt.doctor.host import Host

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
AMD_VISIBILITY = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
NVIDIA_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
VULKAN_VISIBILITY = ("GGML_VK_VISIBLE_DEVICES", "MESA_VK_DEVICE_SELECT")
WATCHED = (
    *AMD_VISIBILITY,
    *NVIDIA_VISIBILITY,
    *VULKAN_VISIBILITY,
    *("CUDA_DEVICE_ORDER", "HSA_ENABLE_DXG_DETECTION", "HSA_ENABLE_SDMA", "AMD_SERIALIZE_KERNEL"),
    *("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "RUSTICL_ENABLE"),
    *("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "VK_DRIVER_FILES", "VK_ICD_FILENAMES"),
    *("VK_ADD_DRIVER_FILES", "VK_LOADER_DRIVERS_DISABLE", "LIBGL_ALWAYS_SOFTWARE"),
    *("TRITON_INTERPRET", "TRITON_CACHE_DIR", "POCL_CACHE_DIR", "CLOVER_RT_LOAD_PLUGINS"),
    "CLOVER_RT_VULKAN_DRIVER",
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
)


def probe(host: Host, report: dict[str, Any]) -> Iterator[Finding]:
    """Fill `variables`: the watched ones that are set."""
    report["variables"] = {
        name: value
        for name, value in sorted(host.environ.items())
        if name in WATCHED or name.startswith(OVERRIDE)
    }
    yield from ()


def gfx_of(version: str) -> str:
    """Return the architecture of an override such as 11.0.0 (gfx1100); "" for a malformed one."""
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})\.(\d{1,2})", version.strip())
    return "" if match is None else f"gfx{match[1]}{int(match[2]):x}{int(match[3]):x}"


def overrides(host: Host, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Judge HSA_OVERRIDE_GFX_VERSION and its form for one node, HSA_OVERRIDE_GFX_VERSION_n.

    gpus  AMD's, with `node` (the number in the kernel's topology) and `arch`
    """
    numbered = {}
    for name in sorted(host.environ):
        match = re.fullmatch(rf"{OVERRIDE}_(\d+)", name)
        if match:
            numbered[int(match[1])] = name
    for name in [n for n in (OVERRIDE,) if n in host.environ] + list(numbered.values()):
        value = host.environ[name]
        told = f"{name}={value}"
        wanted = gfx_of(value)
        if not wanted:
            yield finding("CRT-5123", told, name=name)
            continue
        if name == OVERRIDE:
            reached = [g for g in gpus if g.get("node") not in numbered]
        else:
            reached = [g for g in gpus if numbered.get(g.get("node", -1)) == name]
        reached = [g for g in reached if g["arch"]]
        if not reached:
            yield finding("CRT-5122", f"{told}; AMD GPUs: {_list(gpus)}", name=name)
        differing = [g for g in reached if g["arch"] != wanted]
        if differing:
            yield finding("CRT-5120", f"{told} is {wanted}; {_list(differing)}", name=name)
        elif reached:
            yield finding("CRT-5121", f"{told} is {wanted}; {_list(reached)}", name=name)


def hidden(host: Host, gpus: Sequence[Gpu], names: Sequence[str]) -> Iterator[Finding]:
    """Apply visibility lists in their order, note what each hides, and say so.

    gpus in the order in which the library counts them
    """
    seen = list(gpus)
    for name in names:
        value = host.environ.get(name)
        if value is None:
            continue
        left = visible(seen, value)
        gone = [g for g in seen if g not in left]
        for g in gone:
            g["hidden_by"].append(name)
        if gone:
            yield finding(
                "CRT-5130",
                f"{name}={value} leaves {len(left)} of {len(seen)}; hidden: {_list(gone)}",
                name=name,
            )
        seen = left


def visible(gpus: Sequence[Gpu], value: str) -> list[Gpu]:
    """Return the devices that a list names: numbers or unique ids; it ends at the first unknown."""
    if value.strip().lower() in ("all",):
        return list(gpus)
    out: list[Gpu] = []
    for item in value.split(","):
        item = item.strip()
        if item.isdigit() and int(item) < len(gpus):
            out.append(gpus[int(item)])
            continue
        uuids = [g for g in gpus if item and str(g.get("uuid", "")).startswith(item)]
        if len(uuids) != 1:
            break
        out += uuids
    return out


def _list(gpus: Sequence[Gpu]) -> str:
    named = (f"{g['id']} is {g['arch'] or g['name']}" for g in gpus)
    return ", ".join(named) or "none"
