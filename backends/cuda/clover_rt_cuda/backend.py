"""The cuda backend: which devices there are, found without loading more than that needs.

`CLOVER_RT_TRITON_INTERPRET=1` adds the device `interpreter`: the same kernels, run by Triton's
interpreter on the host. It is for tests: slow, and opened only by name.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clover_rt.backend import Backend, Device, DeviceInfo, Probe
from clover_rt.errors import BackendUnavailable
from clover_rt_cuda.choice import decide

INTERPRET = "CLOVER_RT_TRITON_INTERPRET"
TRITON_INTERPRET = "TRITON_INTERPRET"
INTERPRETER = DeviceInfo(
    id="interpreter",
    name="Triton interpreter on the host",
    kind="cpu",
    is_software=True,
    notes={"environment": f"{TRITON_INTERPRET}=1"},
)
DOCTOR = "`clover-rt doctor` looks at driver, nodes and variables"
DRIVER = Path("/sys/module/nvidia/version")
LIBRARY = "libcuda.so.1"
LEAST_TRITON = (3, 4)
"""The oldest that the kernels compile with; those before it have no `triton.knobs`."""
INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130"
OLD_INSTALL = (
    "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
)
"""For drivers before 580, and for cards before LEAST_NEW, which CUDA 13 has no code for."""
LEAST_NEW = (7, 5)
NEEDED = (
    f"install a CUDA build of torch, which brings its triton: {INSTALL} (with a driver before 580: "
    f"{OLD_INSTALL})"
)
BROKEN = f"install torch and its triton anew: {INSTALL}"


class CudaBackend(Backend):
    """NVIDIA devices through torch and Triton."""

    name = "cuda"
    api = (1, 0)

    def probe(self) -> Probe:
        problem = lacking()
        if problem:
            return Probe(problem=problem, fix=NEEDED)
        found = cards()
        if os.environ.get(INTERPRET) == "1":
            found = Probe((*found.devices, INTERPRETER), found.problem, found.fix)
        devices = decide(found)
        return Probe(devices) if devices else found

    def open(self, info: DeviceInfo) -> Device:
        with loading(BROKEN):
            if info.id == INTERPRETER.id:
                interpret()
            # first here: it loads torch, and the kernels load triton
            from clover_rt_cuda.device import CudaDevice

        return CudaDevice(info)


def lacking() -> str:
    """Return which of torch and triton is absent or too old, "" for none; neither is imported."""
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} cannot be imported"
    version = triton_version()
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) >= LEAST_TRITON:
        return ""
    least = ".".join(map(str, LEAST_TRITON))
    return f"triton {version} is too old; the kernels need {least} or newer"


def triton_version() -> str:
    """Return the version that triton's source tells, "" where it tells none."""
    spec = find_spec("triton")
    try:
        text = Path(spec.origin).read_text() if spec is not None and spec.origin else ""
    # one that is damaged is told by its import
    except (OSError, UnicodeDecodeError):
        return ""
    found = re.search(r"^__version__ = ['\"](.+)['\"]", text, re.M)
    return found[1] if found else ""


@contextmanager
def loading(fix: str) -> Iterator[None]:
    """Tell a torch or triton that is there and cannot be loaded as such."""
    try:
        yield
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            what="torch and triton were to be loaded",
            evidence=f"{type(error).__name__}: {error}",
            fix=fix,
            code="CRT-3522",
        ) from error


def cards() -> Probe:
    """Return the cards that torch sees and has code for, and what is wrong with others."""
    return ask_torch(_seen, BROKEN)


def ask_torch(seen: Callable[[Any, str], Probe], broken: str) -> Probe:
    """Return what `seen` finds, given torch and its name with the version, or why it cannot.

    broken  the fix of a torch that cannot be imported
    """
    try:
        import torch
    # a library that is missing or broken must not end the program
    except Exception as error:
        problem = f"torch cannot be imported: {type(error).__name__}: {error}"
        return Probe(problem=problem, fix=broken)
    name = f"torch {torch.__version__}"
    try:
        return seen(torch, name)
    # a driver raises what it likes
    except Exception as error:
        problem = f"{name} cannot ask for cards: {type(error).__name__}: {error}"
        return Probe(problem=problem, fix=DOCTOR)


def _seen(torch: Any, name: str) -> Probe:
    if torch.version.cuda is None:
        return Probe(problem=f"{name} is built without CUDA", fix=NEEDED)
    if not torch.cuda.is_available():
        fix = (
            "look at the driver with nvidia-smi, and at CUDA_VISIBLE_DEVICES; `clover-rt doctor` "
            "tells whether the driver is too old"
        )
        return Probe(problem=f"{name} finds no usable card", fix=fix)
    archs = torch.cuda.get_arch_list()
    seen = [(i, torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())]
    without = [card for _, card in seen if not has_code(card.major, card.minor, archs)]
    able = tuple(_describe(i, card, torch) for i, card in seen if card not in without)
    if not without:
        return Probe(able)
    names = ", ".join(f"{_arch(card)} ({card.name})" for card in without)
    is_new = all((card.major, card.minor) >= LEAST_NEW for card in without)
    return Probe(
        able,
        f"{name} has code for {', '.join(archs)}, not for {names}",
        "install a torch whose torch.cuda.get_arch_list() has it: "
        + (f"{INSTALL}, or a newer one" if is_new else OLD_INSTALL),
    )


def has_code(major: int, minor: int, archs: Sequence[str]) -> bool:
    """Return whether code for these architectures runs on a card; that of no names is not known.

    sm_NN runs on the same major version and no older minor, compute_NN on everything newer too;
    with a letter behind it, it is for that version alone (f: for its major).
    """
    for name in archs:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if found is None:
            continue
        made = int(found[2]), int(found[3])
        if found[4] == "a":
            fits = made == (major, minor)
        elif found[1] == "sm" or found[4]:
            fits = made[0] == major and made[1] <= minor
        else:
            fits = made <= (major, minor)
        if fits:
            return True
    return not archs


def _describe(index: int, card: Any, torch: Any) -> DeviceInfo:
    notes = {
        "arch": _arch(card),
        "torch": torch.__version__,
        "triton": triton_version(),
        "cuda": str(torch.version.cuda),
        "driver": driver_version(),
        "visible devices": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
    }
    kind = "integrated" if getattr(card, "is_integrated", False) else "discrete"
    return DeviceInfo(f"cuda:{index}", card.name, kind, card.total_memory, notes=notes)


def _arch(card: Any) -> str:
    return f"sm_{card.major}{card.minor}"


def driver_version() -> str:
    """Return the version of the driver's module, or the CUDA it is for where it has none (WSL)."""
    try:
        return DRIVER.read_text().strip()
    except OSError:
        number = ctypes.c_int()
    try:
        ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return "unknown"
    return f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"


def interpret() -> None:
    """Make triton interpret kernels in this process, and prepare each function for it once."""
    triton = sys.modules.get("triton")
    if triton is not None and not triton.knobs.runtime.interpret:
        raise BackendUnavailable(
            what="device 'interpreter' was requested",
            evidence="triton is loaded already, and compiles in this process",
            fix=f"set {TRITON_INTERPRET}=1 before the program starts",
            code="CRT-3520",
        )
    os.environ[TRITON_INTERPRET] = "1"
    from triton.runtime import interpreter

    prepared: set[Any] = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # triton's own does so at every call of a function by a kernel: half of all time
        if self.fn not in prepared:
            prepared.add(self.fn)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
