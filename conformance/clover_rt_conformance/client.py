"""Runs trials in workers: a crash or a hang is charged to its trial, a new worker goes on."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import IO, Any, Protocol

from clover_rt.errors import BackendUnavailable
from clover_rt.spec import Precision
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.trial import Outcome, Result, Trial, attempt, result

START_S = 300.0
FULL_S = 20.0
"""A trial of the full lane may take this many times as long as one of the usual lane."""
TAIL = 40


class Runner(Protocol):
    """Something that runs trials and knows what it runs them on."""

    about: dict[str, Any]

    def run(self, trial: Trial, precision: Precision, seed: int) -> Result: ...

    def close(self) -> None: ...


class Inline:
    """Runs trials in this process: for devices that exist only here, and for debuggers."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.about: dict[str, Any] = {"device": {"name": bench.device.name}}

    def run(self, trial: Trial, precision: Precision, seed: int = 0) -> Result:
        return attempt(trial, self.bench, precision, seed)

    def close(self) -> None:
        self.bench.close()


class Workers:
    """Runs trials in one worker after the other.

    about      what the worker says of device, plugin and machine
    timeout_s  after this long without an answer the trial counts as crashed

    Raises BackendUnavailable where the device cannot be opened, CRT-3090 where the worker ends
    before it has opened it, CRT-3091 where the system cannot start one.
    """

    def __init__(
        self,
        backend: str,
        device: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self.backend, self.device, self.timeout_s = backend, device, timeout_s
        self.environment = dict(environment or {})
        self.about: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None
        self._start()

    def run(self, trial: Trial, precision: Precision, seed: int = 0) -> Result:
        """Run a trial; whatever happens to the worker becomes its result."""
        if self._process is None:
            try:
                self._start()
            except BackendUnavailable as error:
                return result(trial, precision, Outcome.CRASHED, error.what, error.evidence)
        limit = self.timeout_s * (FULL_S if trial.is_full else 1.0)
        self._tell({"id": trial.id, "precision": precision.value, "seed": seed})
        answer = self._hear(limit)
        if answer is not None and "result" in answer:
            if not answer["healthy"]:
                # the next case gets a process and a device of its own
                self._end()
            return Result.from_dict(answer["result"])
        if self._process is not None and self._process.poll() is None and answer is None:
            text = f"no answer in {limit:g} s: it hangs, or needs a longer --timeout"
            told = self._end()
        else:
            told = self._end()
            text = f"the worker ended: {self._how}"
        return result(trial, precision, Outcome.CRASHED, text, *told)

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        for _ in range(2):
            self._launch()
            self._tell({"backend": self.backend, "device": self.device})
            answer = self._hear(START_S) or {}
            if "about" in answer:
                self.about = answer["about"]
                return
            told = self._end()
            if "error" in answer:
                error = answer["error"]
                raise BackendUnavailable(
                    error["what"], error["evidence"], error["fix"], error["code"]
                )
            if "environment" not in answer:
                break
            # the device wants variables that must be there before its library is loaded
            self.environment |= answer["environment"]
        raise BackendUnavailable(
            what=f"a worker for backend {self.backend!r} was started",
            evidence="\n".join([f"it ended before the device was open: {self._how}", *told]),
            fix=f"see `clover-rt backends --why {self.backend}`; the lines above are its last",
            code="CRT-3090",
        )

    def _launch(self) -> None:
        command = [sys.executable, "-m", "clover_rt_conformance.worker"]
        with contextlib.ExitStack() as stack:
            try:
                # closed with the worker, whose last words it holds
                errors = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    bufsize=1,
                    env=os.environ | self.environment,
                )
            except OSError as error:
                raise BackendUnavailable(
                    what=f"a worker for backend {self.backend!r} was to be started",
                    evidence=f"{' '.join(command)}: {error}",
                    fix="free memory and processes, and check that Python can be run and that "
                    "TMPDIR can be written to",
                    code="CRT-3091",
                ) from error
            stack.pop_all()
        self._errors: IO[str] = errors
        self._answers: queue.Queue[str] = queue.Queue()
        thread = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        thread.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        answers = self._answers
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        # the end of the worker, so that nobody waits for it
        answers.put("")

    def _tell(self, order: dict[str, Any]) -> None:
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        except (BrokenPipeError, OSError):
            # it has ended; listening tells how
            return

    def _hear(self, limit: float) -> dict[str, Any] | None:
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            return None
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

    def _end(self) -> list[str]:
        """End the worker; return the last lines that it wrote to standard error."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        self._process = None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            # one that is done ends by itself; one that hangs does not
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        code = process.returncode
        self._how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        lines = self._errors.read().splitlines()[-TAIL:]
        self._errors.close()
        return lines
