"""What a device has beyond OpenCL C 1.2: what it announces, compiled, run and its numbers checked.

Kernels that use it are compiled behind text that says how, and have a plain form for devices
without. float16 arithmetic is told and not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl

from clover_rt_rocm.opencl.program import Programs

Array = npt.NDArray[Any]
STANDARDS = ("CL1.2", "CL2.0", "CL3.0")
ABSENT = "not announced"
# capabilities that kernels use where they are found
USED = ("int dot", "subgroups")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the programs of a device are compiled with.

    int_dot    defines DOT4(a, b, sum): sum and the products of four signed bytes each, as int;
               "" where there is none
    subgroups  defines of a work-item's subgroup TEAM (which), TEAMS (of the group), LANE, LANES,
               LANES_SUM(x) and LANES_MAX(x); "" where there are none
    standard   of OpenCL C
    notes      for people: what was found, or why it is not used, by name
    """

    int_dot: str = ""
    subgroups: str = ""
    standard: str = STANDARDS[0]
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.int_dot + self.subgroups

    @property
    def told(self) -> str:
        """What was tried of what kernels use, and what came of it; "" where nothing was."""
        notes = {name: self.notes.get(name, ABSENT) for name in USED}
        return "; ".join(f"{name}: {text}" for name, text in notes.items() if text != ABSENT)


PLAIN = Capabilities()


@dataclass(frozen=True, slots=True)
class Form:
    """One way to use a capability.

    name       for people
    extension  that announces it
    text       that stands before the kernel
    """

    name: str
    extension: str
    text: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One capability and how it is tried.

    forms   the best first
    kernel  `attempt`, for 64 work-items, from words a and b into words `to`, each [64]
    check   (a, b, to) -> are the numbers right?
    """

    name: str
    forms: tuple[Form, ...]
    kernel: str
    check: Callable[[Array, Array, Array], bool]


def _dots_are_right(a: Array, b: Array, to: Array) -> bool:
    products = a.view(np.int8).astype(np.int32) * b.view(np.int8)
    return np.array_equal(to.view(np.int32), products.reshape(64, 4).sum(axis=1) - 77)


def _teams_are_right(a: Array, b: Array, to: Array) -> bool:
    """Each work-item tells sum and largest of its team, its team and its lane."""
    lanes = to & 63
    teams = to >> 6 & 63
    for team in np.unique(teams):
        own = teams == team
        values = a[own] & 31
        told = (values.sum() << 17) | (values.max() << 12) | (team << 6)
        if sorted(lanes[own]) != list(range(own.sum())) or (to[own] - lanes[own] != told).any():
            return False
    return True


def _halves_are_right(a: Array, b: Array, to: Array) -> bool:
    x, y = (_small(words) for words in (a, b))
    return np.array_equal(to, (x * y).view(np.uint16))


def _small(words: Array) -> Array:
    """Return 1 + k / 1024 for the low ten bits k of words, as float16."""
    return ((words & 1023) | 0x3C00).astype(np.uint16).view(np.float16)


_KERNEL = """kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void attempt(global const uint *a, global const uint *b, global uint *to)
{ int i = get_global_id(0); """
_TEAMS = """#define TEAM get_sub_group_id()
#define TEAMS get_num_sub_groups()
#define LANE get_sub_group_local_id()
#define LANES get_sub_group_size()
#define LANES_SUM(x) sub_group_reduce_add(x)
#define LANES_MAX(x) sub_group_reduce_max(x)
"""

TRIALS = (
    Trial(
        "int dot",
        (
            Form(
                "cl_khr_integer_dot_product",
                "cl_khr_integer_dot_product",
                "#define DOT4(a, b, sum) dot_acc_sat_4x8packed_ss_int(a, b, sum)\n",
            ),
            Form(
                "cl_arm_integer_dot_product_accumulate_int8",
                "cl_arm_integer_dot_product_accumulate_int8",
                "#define DOT4(a, b, sum) arm_dot_acc(as_char4(a), as_char4(b), sum)\n",
            ),
            # AMD's own drivers announce no dots, but their compiler has functions for most cards:
            # the first from gfx11 on. What is announced here tells these drivers from others.
            Form(
                "sudot4 of AMD's compiler",
                "cl_amd_media_ops",
                "#define DOT4(a, b, sum) "
                "__builtin_amdgcn_sudot4(1, as_int(a), 1, as_int(b), sum, 0)\n",
            ),
            Form(
                "sdot4 of AMD's compiler",
                "cl_amd_media_ops",
                "#define DOT4(a, b, sum) __builtin_amdgcn_sdot4(as_int(a), as_int(b), sum, 0)\n",
            ),
        ),
        _KERNEL + "to[i] = as_uint(DOT4(a[i], b[i], -77)); }\n",
        _dots_are_right,
    ),
    Trial(
        "subgroups",
        tuple(
            Form(name, name, f"#pragma OPENCL EXTENSION {name} : enable\n" + _TEAMS)
            for name in ("cl_khr_subgroups", "cl_intel_subgroups")
        ),
        _KERNEL + "float x = a[i] & 31u; uint sum = LANES_SUM(x), top = LANES_MAX(x);\n"
        "to[i] = sum << 17 | top << 12 | TEAM << 6 | LANE; }\n",
        _teams_are_right,
    ),
    Trial(
        "fp16",
        (Form("cl_khr_fp16", "cl_khr_fp16", "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"),),
        _KERNEL + "half x = as_half((ushort)((a[i] & 1023u) | 0x3c00u)),\n"
        "y = as_half((ushort)((b[i] & 1023u) | 0x3c00u)); to[i] = as_ushort((half)(x * y)); }\n",
        _halves_are_right,
    ),
)


def announced(device: Any) -> dict[str, str]:
    """Return for people what a device announces, by name; nothing is compiled or run."""
    notes = {}
    for trial in TRIALS:
        names = ", ".join(form.name for form in _announced(device, trial))
        told = f"announced, and tried as the device is opened: {names}"
        notes[trial.name] = told if names else ABSENT
    return notes


def probe(device: Any) -> Capabilities:
    """Return what a device has; only what it announces is tried."""
    why = ABSENT
    if any(_announced(device, trial) for trial in TRIALS):
        try:
            return _tried(device)
        except cl.Error as error:
            why = f"not tried: {error}"
    return Capabilities(notes={trial.name: why for trial in TRIALS})


@cache
def _tried(device: Any) -> Capabilities:
    """Return what a device has by the lowest standard that gives the most."""
    found = [_by_standard(device, standard) for standard in _standards(device)]
    return max(found, key=lambda c: bool(c.int_dot) + bool(c.subgroups))


def _standards(device: Any) -> Iterator[str]:
    # a device of OpenCL 3.0 may have OpenCL C 3.0 and call 1.2 its highest complete one
    version = device.version.removeprefix("OpenCL ").split()[0]
    yield STANDARDS[0]
    yield from (name for name in STANDARDS[1:] if name.removeprefix("CL") <= version)


def _by_standard(device: Any, standard: str) -> Capabilities:
    context = cl.Context([device])
    programs = Programs(context, device, standard)
    texts, notes = {}, {}
    for trial in TRIALS:
        texts[trial.name], notes[trial.name] = _best(context, programs, device, trial)
    return Capabilities(texts["int dot"], texts["subgroups"], standard, notes)


def _best(context: Any, programs: Programs, device: Any, trial: Trial) -> tuple[str, str]:
    """Return the text of the first form that works and its name, or "" and why there is none."""
    failed = []
    for form in _announced(device, trial):
        why = _failure(context, programs, device, form.text + trial.kernel, trial.check)
        if not why:
            return form.text, form.name
        failed.append(f"{form.name} {why}")
    return "", "; ".join(failed) or ABSENT


def _announced(device: Any, trial: Trial) -> list[Form]:
    names = device.extensions.split()
    return [form for form in trial.forms if form.extension in names]


def _failure(
    context: Any,
    programs: Programs,
    device: Any,
    source: str,
    check: Callable[[Array, Array, Array], bool],
) -> str:
    """Return how a form fails, or ""."""
    numbers = np.random.default_rng(0).integers(0, 1 << 32, (2, 64), np.uint32)
    # the largest products that there are
    numbers[:, :2] = [[0x80808080, 0x80808080], [0x80808080, 0x7F7F7F7F]]
    a, b = numbers
    to = np.zeros(64, np.uint32)
    try:
        programs.build(source)
    except cl.Error:
        return "does not compile"
    try:
        queue, flags = cl.CommandQueue(context, device), cl.mem_flags
        given = [
            cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=x) for x in (a, b)
        ]
        result = cl.Buffer(context, flags.READ_WRITE, to.nbytes)
        kernel = cl.Kernel(programs.built[source], "attempt")
        for i, value in enumerate((*given, result)):
            kernel.set_arg(i, value)
        cl.enqueue_nd_range_kernel(queue, kernel, (64,), (64,))
        cl.enqueue_copy(queue, to, result)
    except cl.Error:
        return "does not run"
    return "" if check(a, b, to) else "gives wrong numbers"
