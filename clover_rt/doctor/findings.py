"""Every finding that doctor can make: one table, from which docs/findings.md is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

DOCS = "docs/findings.md"


class Severity(Enum):
    """`error`: something that was meant to work does not; `warning`: it works worse than it could;
    `info`: worth knowing, nothing to do."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of finding: its code, severity, what it means and what to do.

    remedy may hold {fields} that the finding fills in.
    """

    code: str
    severity: Severity
    what: str
    remedy: str

    @property
    def link(self) -> str:
        return f"{DOCS}#{self.code.lower()}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: its kind, the evidence (paths and values read), the remedy."""

    code: str
    evidence: str
    remedy: str

    @property
    def kind(self) -> Code:
        return CODES[self.code]


def finding(code: str, evidence: str, **fields: str) -> Finding:
    """Return a finding with its remedy filled in."""
    return Finding(code, evidence, CODES[code].remedy.format(**fields))


def _table(*rows: tuple[str, Severity, str, str]) -> Mapping[str, Code]:
    return {row[0]: Code(*row) for row in rows}


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
CODES = _table(
    (
        "CRT-5001",
        _E,
        "a probe of doctor failed",
        "report it with the output of `clover-rt doctor --report report.txt`; the other probes ran",
    ),
    (
        "CRT-5002",
        _W,
        "a probe timed out: what it asks about may be there, but did not answer",
        "run the command of the evidence by hand; a driver that hangs usually needs a restart of "
        "the machine or an update",
    ),
    (
        "CRT-5003",
        _E,
        "doctor cannot start a process of its own, so that what it would have asked is not known",
        "free memory and processes, raise the limit on processes (`ulimit -u`), and check that "
        "the Python that runs doctor may be executed",
    ),
    (
        "CRT-5010",
        _W,
        "the processor has no vector instructions that the fast CPU kernels need",
        "use a processor with AVX2, or a GPU; everything works, slower",
    ),
    (
        "CRT-5011",
        _W,
        "this process may use less of the machine than it has",
        "raise the limit (container flags --cpus and --memory, taskset, the job's request) if more "
        "was meant",
    ),
    (
        "CRT-5101",
        _E,
        "an AMD GPU is there, but the kernel driver amdgpu is not loaded for it",
        "load it with `sudo modprobe amdgpu`, and read `sudo dmesg | grep amdgpu`; a card newer "
        "than the kernel needs a newer kernel and linux-firmware",
    ),
    (
        "CRT-5102",
        _E,
        "the compute node of the AMD driver is missing",
        "use a kernel with amdgpu compute support (CONFIG_HSA_AMD), and reload amdgpu",
    ),
    (
        "CRT-5103",
        _E,
        "the container was not given the GPU's device nodes",
        "start it with {flags}",
    ),
    (
        "CRT-5104",
        _E,
        "a device node cannot be opened: its group is not one of ours",
        "{command}, then log out and in again",
    ),
    (
        "CRT-5105",
        _E,
        "a device node cannot be opened: its group does not exist in this user namespace",
        "in rootless podman start the container with --group-add keep-groups and "
        "--device {path}; in rootless docker give the node to your user outside, or use a "
        "container that is not rootless",
    ),
    (
        "CRT-5106",
        _E,
        "a device node cannot be opened",
        "make {path} readable and writable for this user, or allow it in the container's or "
        "service's device rules",
    ),
    (
        "CRT-5110",
        _I,
        "this is WSL: GPUs come through /dev/dxg, and there is no /dev/kfd",
        "nothing: this is how WSL works",
    ),
    (
        "CRT-5111",
        _E,
        "this is WSL, but it has no GPU device",
        "update WSL (`wsl --update`) and the Windows driver, and use WSL 2",
    ),
    (
        "CRT-5112",
        _W,
        "ROCm is here under WSL, but is not told to look for the WSL device",
        "set HSA_ENABLE_DXG_DETECTION=1",
    ),
    (
        "CRT-5120",
        _E,
        "HSA_OVERRIDE_GFX_VERSION names another architecture than the card has",
        "unset {name}; code for another architecture crashes or computes wrong",
    ),
    (
        "CRT-5121",
        _W,
        "HSA_OVERRIDE_GFX_VERSION names what the card is anyway",
        "unset {name}: it does nothing here, and would hurt another card",
    ),
    (
        "CRT-5122",
        _W,
        "HSA_OVERRIDE_GFX_VERSION is set and reaches no card",
        "unset {name}, or correct the node number",
    ),
    (
        "CRT-5123",
        _E,
        "HSA_OVERRIDE_GFX_VERSION is not a version such as 11.0.0",
        "unset {name}",
    ),
    (
        "CRT-5130",
        _W,
        "a visibility variable hides a GPU",
        "unset {name}, or name the card in it",
    ),
    (
        "CRT-5140",
        _I,
        "an integrated GPU is there beside a card; it is used only when it is named",
        "nothing; --device names it, if it is to be used",
    ),
    (
        "CRT-5150",
        _I,
        "a GPU is there that no installed backend can use",
        "nothing, if the CPU is to be used; else install a backend for it: `clover-rt backends` "
        "lists those that are here",
    ),
    (
        "CRT-5201",
        _E,
        "an NVIDIA GPU is there, but the NVIDIA driver is not loaded",
        "install the NVIDIA driver; if it is installed, load it with `sudo modprobe nvidia`",
    ),
    (
        "CRT-5202",
        _E,
        "the NVIDIA driver is older than what torch was built for",
        "update the driver to {need} or newer, or install a torch for an older CUDA",
    ),
    (
        "CRT-5203",
        _W,
        "the NVIDIA driver is loaded, but its tool does not answer",
        "run `nvidia-smi` by hand; 'version mismatch' means that the machine needs a restart",
    ),
    (
        "CRT-5301",
        _E,
        "torch was not built for this GPU's architecture",
        "install a torch that has {arch}: {install}",
    ),
    (
        "CRT-5302",
        _W,
        "torch is here, but without support for the GPU that is here",
        "install a torch for it: {install}",
    ),
    (
        "CRT-5303",
        _E,
        "torch or triton is installed but cannot be imported",
        "install it again in this environment, and read the evidence",
    ),
    (
        "CRT-5304",
        _E,
        "torch is built for this GPU but does not find it",
        "read the other findings on its driver, nodes and variables first",
    ),
    (
        "CRT-5401",
        _W,
        "a GPU is there, but no OpenCL driver is registered",
        "install the vendor's OpenCL runtime; it puts a file into /etc/OpenCL/vendors",
    ),
    (
        "CRT-5402",
        _W,
        "a registered OpenCL driver names a library that is not there",
        "install the driver's package again, or remove {path}",
    ),
    (
        "CRT-5403",
        _E,
        "an OpenCL driver crashes when it is asked for its devices",
        "update or remove the driver of {path}; OCL_ICD_VENDORS=FOLDER leaves others out",
    ),
    (
        "CRT-5404",
        _I,
        "an OpenCL device is a processor; such devices are used only by name",
        "nothing; it serves tests",
    ),
    (
        "CRT-5501",
        _W,
        "a GPU is there, but no Vulkan driver for it is registered",
        "install the driver: mesa-vulkan-drivers for AMD and Intel, the NVIDIA driver for NVIDIA",
    ),
    (
        "CRT-5502",
        _W,
        "a GPU is there, but Vulkan sees only software devices",
        "install the Vulkan driver of the card, and check that its render node opens",
    ),
    (
        "CRT-5503",
        _I,
        "a Vulkan device is software; such devices are used only by name",
        "nothing; it serves tests",
    ),
    (
        "CRT-5504",
        _E,
        "a Vulkan driver crashes when it is asked for its devices",
        "update or remove the driver of {path}; VK_DRIVER_FILES=FILE uses only one",
    ),
    (
        "CRT-5505",
        _W,
        "a variable names Vulkan driver files that are not there",
        "unset {name}, or correct it",
    ),
    (
        "CRT-5601",
        _W,
        "compiled kernels cannot be kept: the cache folder is read-only",
        "set {name} to a folder that can be written to; everything works, with a slower start",
    ),
    (
        "CRT-5602",
        _W,
        "the disk of the cache or temporary folder is nearly full",
        "make room, or set {name} to a folder on another disk",
    ),
    (
        "CRT-5603",
        _W,
        "the temporary folder cannot be written to",
        "set TMPDIR to a folder that can be written to",
    ),
    (
        "CRT-5701",
        _E,
        "a backend cannot be used",
        "{fix}",
    ),
    (
        "CRT-5702",
        _E,
        "no backend of that name is installed",
        "`clover-rt backends` lists them",
    ),
    (
        "CRT-5703",
        _I,
        "a backend has only devices that are not chosen by themselves",
        "nothing, if another backend is to be used; `{chosen}` uses it on request",
    ),
    (
        "CRT-5704",
        _I,
        "a backend that comes with clover-rt has nothing to run on here",
        "nothing, if you do not want it; else {fix}",
    ),
    (
        "CRT-5705",
        _E,
        "no backend that is judged has a device of that name",
        "use the id of one of these devices, or leave --device out",
    ),
    (
        "CRT-5801",
        _E,
        "a device computes wrong numbers",
        "do not use it; update its driver, and report it with `clover-rt doctor --report FILE`",
    ),
    (
        "CRT-5802",
        _E,
        "a device's kernels fail, crash or hang",
        "do not use it; update its driver, and report it with `clover-rt doctor --report FILE`",
    ),
    (
        "CRT-5803",
        _E,
        "the built-in model does not run on a device",
        "read the evidence; `clover-rt run --backend {backend} --explain Hello` shows more",
    ),
    (
        "CRT-5804",
        _W,
        "a device decides other tokens than the cpu backend on the built-in model",
        "compare with `clover-rt conformance --backend {backend}`; near-ties may flip, whole "
        "sentences may not",
    ),
    (
        "CRT-5805",
        _W,
        "a backend has no kernel of its own for a hot operation",
        "nothing, if it is young; those steps run on the cpu and cost speed",
    ),
    (
        "CRT-5806",
        _I,
        "a backend has no kernel for what doctor tries: all of that runs on the host",
        "nothing, if it is young; docs/plugins.md says how to add a kernel",
    ),
    (
        "CRT-5807",
        _E,
        "something of a device, such as a shader, fails, hangs or crashes its driver",
        "do not use the device; update its driver; where the evidence tells of a damaged file, "
        "install the package again",
    ),
    (
        "CRT-5808",
        _I,
        "a card has no tuning table: its kernels use tile sizes of their own",
        "nothing; a table {arch}.json in clover-rt/tuning of the configuration folder may make it "
        "faster",
    ),
)
