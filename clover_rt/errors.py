"""The errors that users meet: each says what was asked, what was found, and what to do."""

from __future__ import annotations


class CloverError(Exception):
    """An error with a stable code, a one-line cause, its evidence and a remedy.

    code      stable id, `CRT-nnnn`; the first digit groups them: 1 input and files, 2 the model and
              its graph, 3 backends and devices, 4 the state of a sequence, 9 a bug in clover-rt
    what      one line: what was asked for and could not be done
    evidence  what was found: file, tensor, field, value
    fix       what the user can do about it
    """

    code = "CRT-9000"
    exit_code = 4

    def __init__(self, what: str, evidence: str, fix: str, code: str | None = None) -> None:
        self.what = what
        self.evidence = evidence
        self.fix = fix
        if code is not None:
            self.code = code
        super().__init__(f"{self.code}: {what}\n  found: {evidence}\n  fix: {fix}")


class BadInput(CloverError):
    """A prompt, option or value that the user gave cannot be used."""

    code = "CRT-1000"
    exit_code = 2


class BadCheckpoint(CloverError):
    """A checkpoint's file, tensor or field is missing, unknown or contradictory."""

    code = "CRT-1100"
    exit_code = 2


class BadGraph(CloverError):
    """A graph whose operands do not fit together; the evidence lists every mismatch."""

    code = "CRT-2000"


class BackendUnavailable(CloverError):
    """The backend or device that was asked for cannot be used on this machine."""

    code = "CRT-3000"
    exit_code = 3


class Unsupported(CloverError):
    """A device refuses an operation, and no allowed fallback runs it."""

    code = "CRT-3100"
    exit_code = 3


class OutOfMemory(CloverError):
    """A device has less memory than the request; both numbers are in the evidence."""

    code = "CRT-3200"
    exit_code = 3


class DeviceLost(CloverError):
    """A device stopped answering; the evidence names the last operation."""

    code = "CRT-3300"
    exit_code = 3


class NonFinite(CloverError):
    """A pass produced inf or NaN; the evidence names the layer, the operation and the rows."""

    code = "CRT-4000"
    exit_code = 3


class StaleState(CloverError):
    """A snapshot, a tape or a slot was used after the state it belongs to had moved on."""

    code = "CRT-4100"
