"""What a wrong backend of these tests is."""

from __future__ import annotations

from dataclasses import dataclass

from tests.meta.wrong_device import Make


@dataclass(frozen=True)
class Bug:
    """A wrong device, the class meant for its bug, and a case of that class that shows it."""

    name: str
    of: str
    case: str
    make: Make
