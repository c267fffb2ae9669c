"""The border to a plugin: what it raises becomes a typed error, what it gets was checked before.

Errors of clover-rt cross as they are; anything else is told as PluginFailed, with the plugin's name
and its own trace. A pass has one handler around all of its steps, so a step costs nothing more.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from clover_rt.backend import Device, Tensor
from clover_rt.errors import CloverError, PluginFailed
from clover_rt.spec import OpSpec

if TYPE_CHECKING:
    from clover_rt.plan.program import Action

SUPPORTS, PREPARE, BIND = "CRT-3401", "CRT-3402", "CRT-3403"
STEP, MEMORY, CAPTURE = "CRT-3404", "CRT-3405", "CRT-3406"
ANSWER, NAMES, DESCRIBE = "CRT-3407", "CRT-3408", "CRT-3409"


@contextmanager
def border(device: Device, code: str, doing: str) -> Iterator[None]:
    """Turn what a plugin raises inside into PluginFailed; doing says what it was asked for."""
    try:
        yield
    except CloverError:
        raise
    # SystemExit too: a plugin must not end the program
    except (Exception, SystemExit) as error:
        raise failed(device, code, doing, error) from error


def failed(device: Device, code: str, doing: str, error: BaseException) -> PluginFailed:
    """Return the error for what a plugin raised, with its trace."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    told = PluginFailed(
        what=f"{source(device)} failed to {doing}",
        evidence=f"{type(error).__name__}: {error}{where}",
        fix="report it to the plugin's authors with the trace that CLOVER_RT_DEBUG=1 shows, "
        "or use another backend",
        code=code,
    )
    told.trace = "".join(traceback.format_exception(error))
    return told


def check_step(device: Device, step: object, doing: str) -> None:
    """Raise PluginFailed (CRT-3414) for a step that is none, such as of a missing `return`."""
    if not callable(step):
        raise PluginFailed(
            what=f"{source(device)} was to {doing}",
            evidence=f"it returned {step!r}, which cannot be called",
            fix="return a step: a function of no arguments",
            code="CRT-3414",
        )


def source(device: Device) -> str:
    """Return a device's name and the plugin that it came from."""
    return f"{device.name} ({device.origin})" if device.origin else device.name


def raise_step(
    devices: Sequence[Device], actions: Sequence[Action], error: BaseException
) -> NoReturn:
    """Raise what a step raised, with the operation that it belongs to.

    devices  the device and the host
    actions  those that the failed submission covers
    """
    if isinstance(error, CloverError):
        raise error
    found = actions[0] if len(actions) == 1 else _running(actions, error.__traceback__)
    device = devices[0]
    if found is None:
        names = [a.node.name for a in actions if a.node is not None]
        where = (
            f"run one of the {len(names)} steps that were submitted together, "
            f"{names[0]} to {names[-1]}; --profile runs them one by one and names it"
        )
    elif found.node is None:
        where = f"move {found.moved} between the device and the host"
    else:
        where = f"run {found.node.op} ({found.node.name})"
        device = devices[found.place.value != "device"]
    raise failed(device, STEP, where, error) from error


def _running(actions: Sequence[Action], trace: TracebackType | None) -> Action | None:
    """Return the action whose step ran when an error was raised, where a frame still holds it."""
    by_step = {id(a.step): a for a in actions}
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if id(value) in by_step:
                return by_step[id(value)]
        trace = trace.tb_next
    return None


def check_operands(spec: OpSpec, operands: Mapping[str, Tensor], device: Device) -> None:
    """Assert what `Kernel.bind` promises its author of the operands.

    Each lies inside its buffer at an aligned offset, or at 0 where a device has no views; what is
    written overlaps no other operand.
    """
    written = {o.name for o in spec.operands if o.is_written}
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, t in operands.items():
        assert t.offset % device.alignment == 0, f"{spec.name}.{name} starts at byte {t.offset}"
        assert device.views or t.offset == 0, f"{spec.name}.{name} is inside a buffer"
        assert t.offset + t.nbytes <= t.buffer.nbytes, f"{spec.name}.{name} ends past its buffer"
        spans.setdefault(id(t.buffer), []).append((t.offset, t.offset + t.nbytes, name))
    for shared in spans.values():
        for i, (lo, hi, a) in enumerate(shared):
            for other_lo, other_hi, b in shared[i + 1 :]:
                if {a, b} & written:
                    assert hi <= other_lo or other_hi <= lo, f"{spec.name}: {a} overlaps {b}"
