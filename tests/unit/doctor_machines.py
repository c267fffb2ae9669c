"""Machines for tests of doctor: each a folder of small files and answers of programs and libraries.

A machine is written as data. Device nodes cannot be made in a folder, so they are described:
path -> (mode, uid, gid); whether one opens follows from mode, owner and our groups, as in the
kernel.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from clover_rt.backend import DeviceInfo
from clover_rt.doctor.host import ABSENT, CRASHED, DONE, TIMED_OUT, Host, Node, Ran
from clover_rt.plugins import Status

GIB = 1 << 30
ME, RENDER = 1000, 105
CPU = Status(
    "cpu", "cpu", "0.1.0", "1.0", "usable", "", devices=(DeviceInfo("cpu", "Some CPU", "cpu"),)
)
ROCM = Status(
    *("rocm", "rocm", "0.1.0", "1.0", "usable", ""),
    devices=(DeviceInfo("0000:03:00.0", "Radeon", "gpu"),),
)
KERNELS = {
    "device": "cpu",
    "copy": "",
    "ops": [{"op": "linear", "right": 5, "refused": [], "wrong": []}],
    "declined": [],
}
MODEL = {
    "mode": "diffusion",
    "device": "cpu",
    "tokens": [1, 2, 3],
    "text": "one",
    "finish_reason": "stop",
    "tokens_per_s": 100.0,
}
HUNG, SEGV, NO_PROGRAM = Ran(TIMED_OUT, seconds=30.0), Ran(CRASHED, -11), Ran(ABSENT)
FLAGS = "fpu sse2 avx2 fma f16c avx512f avx512_vnni"
BASE = {
    "/proc/version": "Linux version 6.12.0 (gcc 14.2.0)",
    "/proc/cpuinfo": f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {FLAGS}\n",
    "/proc/meminfo": "MemTotal:       32000000 kB\nMemAvailable:   24000000 kB\n",
    "/proc/self/uid_map": "         0          0 4294967295",
    "/proc/self/cgroup": "0::/user.slice",
    "/proc/1/cgroup": "0::/init.scope",
    "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian 13"',
    "/etc/group": "root:x:0:\nvideo:x:44:\nrender:x:105:someone",
    "/sys/devices/system/cpu/cpu0/cache/index3/size": "32768K",
    "/sys/fs/cgroup/user.slice/cpu.max": "max 100000",
    "/sys/fs/cgroup/user.slice/memory.max": "max",
}


@dataclass
class Machine:
    """files path -> text; nodes path -> (mode, uid, gid); answers by question or program."""

    files: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    children: dict[str, object] = field(default_factory=dict)
    programs: dict[str, Ran] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    backends: tuple[Status, ...] = (CPU,)
    read_only: tuple[str, ...] = ()
    disk: tuple[int, int] = (500 * 10**9, 200 * 10**9)
    gids: frozenset[int] = frozenset({ME, RENDER})
    cores: int = 8
    usable_cores: int = 8

    def __add__(self, other: Machine) -> Machine:
        """Return the parts of two machines in one."""
        joined = {
            name: {**getattr(self, name), **getattr(other, name)}
            for name in ("files", "nodes", "environ", "children", "programs", "packages")
        }
        backends = tuple({b.name: b for b in self.backends + other.backends}.values())
        return Machine(**joined, backends=backends)

    def host(self, root: Path) -> Host:
        """Write the machine into a folder and return the host that reads it."""
        for path, text in {**BASE, **self.files}.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for path in self.nodes:
            (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (root / path.lstrip("/")).touch()
        return Host(
            root=root,
            environ=self.environ,
            run=lambda argv, env, seconds: self.programs.get(argv[0], NO_PROGRAM),
            child=self.answer,
            node=self.node,
            writable=lambda path: not any(path.startswith(p) for p in self.read_only),
            disk=lambda path: self.disk,
            backends=lambda: self.backends,
            packages=self.packages,
            uid=ME,
            gids=self.gids,
            cores=self.cores,
            usable_cores=self.usable_cores,
            kernel="6.12.0",
            python="3.12.1",
            user="ada",
            name="analytical",
            home="/home/ada",
        )

    def answer(self, args, environ, seconds) -> Ran:
        """Answer a question: data, a Ran, or a function of the environment that returns one."""
        defaults = {
            "opencl": {"loader": "", "platforms": []},
            "vulkan": {"loader": "", "devices": []},
            "bandwidth": {"read_gb_per_s": 30.0, "read_bytes": 1 << 28, "read_threads": 8},
            "kernels": KERNELS,
            "model": MODEL,
        }
        answers = defaults | self.children
        found = answers.get(" ".join(args[:2]), answers.get(args[0]))
        if callable(found):
            found = found(environ)
        return found if isinstance(found, Ran) else Ran(DONE, 0, json.dumps(found))

    def node(self, path: str) -> Node | None:
        if path not in self.nodes:
            return None
        mode, uid, gid = self.nodes[path]
        shift = 6 if uid == ME else 3 if gid in self.gids else 0
        opens = mode >> shift & 0o6 == 0o6
        return Node(path, mode, uid, gid, "" if opens else "Permission denied")


def amd(
    address: str = "0000:03:00.0",
    version: int = 120001,
    node: int = 1,
    render: int = 128,
    vram: int = 32 * GIB,
    mode: int = 0o660,
    gid: int = RENDER,
) -> Machine:
    """Return an AMD card with its driver loaded and its nodes there."""
    bus, slot = int(address[5:7], 16), int(address[8:10], 16)
    at, topology = f"/sys/bus/pci/devices/{address}", f"/sys/class/kfd/kfd/topology/nodes/{node}"
    properties = (
        f"simd_count 64\ngfx_target_version {version}\nvendor_id 4098\n"
        f"location_id {bus << 8 | slot << 3}\ndomain 0\nunique_id {0xABC0 + node}"
    )
    return Machine(
        files={
            f"{at}/class": "0x030000",
            f"{at}/vendor": "0x1002",
            f"{at}/device": "0x7551",
            f"{at}/driver/module": "",
            f"{at}/mem_info_vram_total": str(vram),
            f"{at}/mem_info_vram_used": str(GIB),
            f"{at}/drm/renderD{render}/dev": "226:128",
            "/sys/module/amdgpu/version": "6.12",
            "/sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 8\nsimd_count 0",
            f"{topology}/properties": properties,
            f"{topology}/name": "navi48",
        },
        nodes={"/dev/kfd": (mode, 0, gid), f"/dev/dri/renderD{render}": (mode, 0, gid)},
        backends=(CPU, ROCM),
    )


def nvidia(driver: str = "580.95.05") -> Machine:
    """Return an NVIDIA card with its driver loaded."""
    at = "/sys/bus/pci/devices/0000:01:00.0"
    line = f"00000000:01:00.0, GPU-1234, GeForce RTX 5070 Ti, 16303, 15000, {driver}, 12.0\n"
    return Machine(
        files={
            f"{at}/class": "0x030000",
            f"{at}/vendor": "0x10de",
            f"{at}/device": "0x2c05",
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for "
            f"x86_64  {driver}  Release Build",
        },
        nodes={f"/dev/{n}": (0o666, 0, 0) for n in ("nvidia0", "nvidiactl", "nvidia-uvm")},
        programs={"nvidia-smi": Ran(DONE, 0, line)},
        backends=(
            CPU,
            Status(
                *("cuda", "cuda", "0.1.0", "1.0", "usable", ""),
                devices=(DeviceInfo("0000:01:00.0", "GeForce", "gpu"),),
            ),
        ),
    )


def torch(cuda=None, hip=None, arch=(), available=True, version="2.13.0") -> Machine:
    """Return an environment with torch in it, built as told."""
    answer = {
        "version": version,
        "cuda": cuda,
        "hip": hip,
        "arch_list": list(arch),
        "is_available": available,
        "devices": [],
    }
    return Machine(packages={"torch": version}, children={"torch": answer})


def vulkan_device(kind: str, name: str, address: str = "") -> dict:
    """Return a device as the Vulkan question answers it."""
    return {
        "name": name,
        "kind": kind,
        "api": "1.3.230",
        "vendor_id": "0x1002" if address else "0x10005",
        "id": address,
        "heaps": [{"bytes": 32 * GIB, "is_device_local": True}],
        "max_storage_buffer_range": 1 << 27,
        "max_shared_memory": 32768,
        "max_workgroup_invocations": 1024,
        "driver": "radv" if address else "llvmpipe",
        "driver_version": "Mesa 25",
    }
