"""Host threads: how many the cpu backend's kernels run on, be it the device or the host of one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from clover_rt.backend import Device
from clover_rt.errors import BadInput
from clover_rt.plan import Plan


@runtime_checkable
class Threaded(Protocol):
    """A device whose kernels run on a number of host threads that can be chosen."""

    @property
    def threads(self) -> int: ...

    def use_threads(self, count: int) -> None:
        """Run on so many threads; told before anything is bound. Raises BadInput."""


def use_threads(device: Device, count: int) -> None:
    """Let a device run on so many threads.

    Raises BadInput: CRT-1062 for a number that it does not take, CRT-1063 where it takes none.
    """
    if not isinstance(device, Threaded):
        raise BadInput(
            what=f"threads={count!r} was given",
            evidence=f"the number of threads of {device.name} ({device.origin}) cannot be chosen",
            fix="leave it out, or uninstall the plugin that took the place of the cpu backend",
            code="CRT-1063",
        )
    device.use_threads(count)


def threads_of(plan: Plan) -> int | None:
    """Return the host threads that steps of a plan run on; None where no step runs on any."""
    places = {choice.place for choice in plan.choices}
    devices = [plan.devices[place] for place in places]
    return next((d.threads for d in devices if isinstance(d, Threaded)), None)
