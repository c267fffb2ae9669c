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

    @classmethod
    def of(cls, device: str, requested: int, free: int) -> OutOfMemory:
        """Return the error of a device that has `free` bytes where `requested` were asked for."""
        return cls(
            what=f"{requested} bytes of memory were asked for on {device}",
            evidence=f"requested {requested} bytes, free {free} bytes",
            fix="lower --context, load with fewer slots, or end other programs on the device",
        )


class DeviceLost(CloverError):
    """A device stopped answering; the evidence names the last operation."""

    code = "CRT-3300"
    exit_code = 3

    @classmethod
    def of(cls, device: str, op: str, cause: str) -> DeviceLost:
        """Return the error of a device that was lost while it ran `op`; cause is the driver's."""
        return cls(
            what=f"{device} stopped answering",
            evidence=f"last operation {op}: {cause}",
            fix="look into the system log, reset the device, and start the program anew",
        )


class CompileError(CloverError):
    """A kernel did not compile on this machine; the evidence ends with the compiler's log."""

    code = "CRT-3500"
    exit_code = 3

    @classmethod
    def of(cls, device: str, kernel: str, log: str) -> CompileError:
        """Return the error of a kernel that did not compile; log is the compiler's output."""
        return cls(
            what=f"kernel {kernel} did not compile for {device}",
            evidence=f"the compiler said:\n{log.rstrip()}",
            fix="update the device's driver or toolchain, or use --backend cpu",
        )


class PluginFailed(CloverError):
    """A backend's plugin raised what it should not, or answered what the contract forbids.

    trace  the plugin's own trace, "" where nothing raised
    """

    code = "CRT-3400"
    exit_code = 3
    trace = ""


class NonFinite(CloverError):
    """A pass produced inf or NaN; the evidence names the layer, the operation and the rows."""

    code = "CRT-4000"
    exit_code = 3


class StaleState(CloverError):
    """A snapshot, a tape or a slot was used after the state it belongs to had moved on."""

    code = "CRT-4100"
