"""Find the cards that a ROCm build of torch drives; torch is imported only where it is one."""

from __future__ import annotations

import os
import platform
import runpy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clover_rt.backend import Device, DeviceInfo, Probe
from clover_rt_cuda.backend import (
    DOCTOR,
    INTERPRET,
    INTERPRETER,
    ask_torch,
    interpret,
    lacking,
    loading,
    triton_version,
)
from clover_rt_rocm.hip import recording

INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/rocm7.2"
NEEDED = (
    f"install a ROCm build of torch, which brings its triton: {INSTALL} (docs/install-radeon.md)"
)
BROKEN = f"install torch and its triton anew: {INSTALL}"


def probe() -> Probe:
    """Return the cards of torch, and the interpreter where it is asked for, or what is missing."""
    problem = lacking()
    if problem:
        return Probe(problem=problem, fix=NEEDED)
    found = cards() if built_for() else Probe(problem="torch is built without ROCm", fix=NEEDED)
    if os.environ.get(INTERPRET) == "1":
        return Probe((*found.devices, INTERPRETER), found.problem, found.fix)
    return found


def built_for() -> str:
    """Return the version of HIP that torch is built for, "" for none; torch is not imported."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        told = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    # a torch that is damaged is told by its import, where it is asked for
    except (OSError, SyntaxError):
        return ""
    return str(told.get("hip") or "")


def cards() -> Probe:
    """Return the cards that torch sees and has code for."""
    found: Probe = ask_torch(_seen, BROKEN)
    return found


def _seen(torch: Any, name: str) -> Probe:
    if not torch.cuda.is_available():
        return Probe(problem=f"{name} finds no usable card", fix=DOCTOR)
    archs = [name.partition(":")[0] for name in torch.cuda.get_arch_list()]
    seen = [(i, torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())]
    able = tuple(describe(i, card) for i, card in seen if not archs or arch_of(card) in archs)
    without = [f"{arch_of(c)} ({c.name})" for _, c in seen if archs and arch_of(c) not in archs]
    if not without:
        return Probe(able)
    return Probe(
        able,
        f"{name} has code for {', '.join(archs)}, not for {', '.join(without)}",
        f"install a torch whose torch.cuda.get_arch_list() has it: {INSTALL}, or a newer one",
    )


def describe(index: int, card: Any) -> DeviceInfo:
    """Return what is told of a card; it is `hip:INDEX`, in the order of torch."""
    import torch

    notes = {
        "engine": "triton",
        "arch": arch_of(card),
        "torch": torch.__version__,
        "triton": triton_version(),
        "hip": str(torch.version.hip),
        "kernel driver": kernel_driver(),
    }
    kind = "integrated" if getattr(card, "is_integrated", False) else "discrete"
    info = DeviceInfo(f"hip:{index}", card.name, kind, card.total_memory, notes=notes)
    told = recording.told(info)
    return replace(info, notes={**notes, "chosen": told}) if told else info


def arch_of(card: Any) -> str:
    """Return a card's architecture: gfx90a of gfx90a:sramecc+:xnack-."""
    return str(card.gcnArchName).partition(":")[0]


def kernel_driver() -> str:
    """Return the version of the driver: its module's, or the kernel's where it comes with that."""
    try:
        return Path("/sys/module/amdgpu/version").read_text().strip()
    except OSError:
        return f"of {platform.release()}"


def open_device(info: DeviceInfo) -> Device:
    """Open a card, or the interpreter."""
    with loading(BROKEN):
        if info.id == INTERPRETER.id:
            interpret()
        # first here: it loads torch, and the kernels load triton
        from clover_rt_rocm.hip.device import HipDevice

    device: Device = HipDevice(info)
    return device
