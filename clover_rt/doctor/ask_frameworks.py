"""Ask torch and triton what they were built for; runs in a child process.

They are imported by name at run time: nothing of clover-rt depends on them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def torch() -> dict[str, Any]:
    """Return torch's version, the GPU platform and architectures it was built for, its devices."""
    t = import_module("torch")
    flags = getattr(t._C, "_cuda_getArchFlags", None)
    # torch.cuda.get_arch_list is empty where no device is found; the flags are always there
    text = flags() if flags is not None else None
    out: dict[str, Any] = {
        "version": t.__version__,
        "cuda": t.version.cuda,
        "hip": getattr(t.version, "hip", None),
        "arch_list": text.split() if text else [],
        "is_available": bool(t.cuda.is_available()),
        "devices": [],
    }
    for i in range(t.cuda.device_count()):
        p = t.cuda.get_device_properties(i)
        arch = getattr(p, "gcnArchName", "").split(":")[0] if out["hip"] else ""
        at = ""
        if hasattr(p, "pci_bus_id"):
            at = f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"
        out["devices"].append(
            {
                "id": at,
                "name": p.name,
                "arch": arch or f"sm_{p.major}{p.minor}",
                "memory_total": p.total_memory,
            }
        )
    return out


def triton() -> dict[str, Any]:
    """Return triton's version and the backends that it compiles for."""
    version = import_module("triton").__version__
    found = import_module("triton.backends").backends
    return {"version": version, "backends": sorted(found)}
