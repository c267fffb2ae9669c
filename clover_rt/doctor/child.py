"""A question that is asked in a process of its own.

    python -m clover_rt.doctor.child PARENT NAME ...

PARENT is the process id of who asks. A library that crashes or hangs ends this process and not
doctor. The answer is JSON, the last line of stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from clover_rt.errors import CloverError

PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Answer one question; return 0, or an error's exit code with one line of it on stderr."""
    name, *arguments = argv
    try:
        answer = QUESTIONS[name](*arguments)
    except CloverError as error:
        evidence = " ".join(error.evidence.split())
        print(f"{error.code}: {error.what}: {evidence}", file=sys.stderr)
        return error.exit_code
    # what a library printed on the way stays in front of the answer
    print(flush=True)
    print(json.dumps(answer))
    return 0


def end_with(parent: int, by: str = "SIGKILL") -> None:
    """Let Linux end this process by a signal where its parent ends; elsewhere nothing happens.

    This is for a parent that is killed: any other ends its children itself.
    """
    if sys.platform != "linux":
        return
    number = getattr(signal, by)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number))
    # it may have ended before
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _opencl() -> dict[str, Any]:
    from clover_rt.doctor.ask_opencl import ask

    return ask()


def _vulkan() -> dict[str, Any]:
    from clover_rt.doctor.ask_vulkan import ask

    return ask()


def _backends(name: str) -> dict[str, Any]:
    from clover_rt.doctor.survey import answer

    return answer(name)


def _torch() -> dict[str, Any]:
    from clover_rt.doctor.ask_frameworks import torch

    return torch()


def _triton() -> dict[str, Any]:
    from clover_rt.doctor.ask_frameworks import triton

    return triton()


def _bandwidth(nbytes: str, threads: str) -> dict[str, Any]:
    from clover_rt.doctor.bandwidth import measure

    return measure(int(nbytes), int(threads))


def _kernels(backend: str, device: str) -> dict[str, Any]:
    from clover_rt.doctor.kernels import check

    return check(backend, device)


def _trials(backend: str, device: str, first: str) -> dict[str, Any]:
    from clover_rt.doctor.trials import run

    return run(backend, device, first)


def _model(backend: str, device: str) -> dict[str, Any]:
    from clover_rt.doctor.block import run

    return run(backend, device)


QUESTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "backends": _backends,
    "opencl": _opencl,
    "vulkan": _vulkan,
    "torch": _torch,
    "triton": _triton,
    "bandwidth": _bandwidth,
    "kernels": _kernels,
    "trials": _trials,
    "model": _model,
}

if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
