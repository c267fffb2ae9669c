"""What trials run on: a device that is opened at first use, and a new one for each whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clover_rt.backend import Device

Open = Callable[[], Device]


class Bench:
    """A way to open the device under test, and what trials keep between them.

    open  opens the device anew: a plan of a whole model has one for itself
    kept  anything that is dear to make, by a key of its maker's
    """

    def __init__(self, open: Open) -> None:
        self.open = open
        self.kept: dict[object, Any] = {}
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """Return the device that single ops run on."""
        if self._device is None:
            self._device = self.open()
        return self._device

    def keep(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, made at first use."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def close(self) -> None:
        """Close every device that was opened."""
        for thing in self.kept.values():
            if hasattr(thing, "close"):
                thing.close()
        self.kept.clear()
        if self._device is not None:
            self._device.close()
            self._device = None
