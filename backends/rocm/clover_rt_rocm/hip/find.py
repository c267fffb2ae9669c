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
from clover_rt_cuda.backend import INTERPRET, INTERPRETER, interpret
from clover_rt_rocm.hip import recording

NEEDED = "install a ROCm build of torch, which brings its triton (docs/install-radeon.md)"


def probe() -> Probe:
    """Return the cards of torch, and the interpreter where it is asked for, or what is missing."""
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        return Probe(problem=f"{' and '.join(missing)} cannot be imported", fix=NEEDED)
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
    try:
        import torch
    # a library of ROCm that is missing or broken must not end the program
    except Exception as error:
        problem = f"torch cannot be imported: {type(error).__name__}: {error}"
        return Probe(problem=problem, fix=NEEDED)
    name = f"torch {torch.__version__}"
    if not torch.cuda.is_available():
        problem = f"{name} finds no usable card"
        return Probe(problem=problem, fix="`clover-rt doctor` looks at driver, nodes and variables")
    archs = [name.partition(":")[0] for name in torch.cuda.get_arch_list()]
    seen = [(i, torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())]
    without = [arch_of(card) for _, card in seen if arch_of(card) not in archs]
    problem = f"{name} has code for {', '.join(archs)}, not for {', '.join(without)}"
    return Probe(
        tuple(describe(i, card) for i, card in seen if arch_of(card) in archs),
        problem if without else "",
        f"install a torch that has {without[0]}" if without else "",
    )


def describe(index: int, card: Any) -> DeviceInfo:
    """Return what is told of a card; it is `hip:INDEX`, in the order of torch."""
    import torch

    notes = {
        "engine": "triton",
        "arch": arch_of(card),
        "torch": torch.__version__,
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
    if info.id == INTERPRETER.id:
        interpret()
    # first here: it loads torch, and the kernels load triton
    from clover_rt_rocm.hip.device import HipDevice

    device: Device = HipDevice(info)
    return device
