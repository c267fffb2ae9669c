"""Threads that walk a table of native steps together, with a barrier between steps.

A pass is one native call a thread. Each step is a function that shares its work over the threads;
work is dealt out by a counter, so a thread that the system holds up slows the others little. At a
barrier a thread spins for about 50 us and then yields its processor; between passes the helpers
spin as long for the next one and then sleep until they are woken.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from clover_rt.backend import Step
from clover_rt_cpu.jit.build import Library
from clover_rt_cpu.jit.lang import I32, I64, Code, Value

Array = npt.NDArray[Any]
SPINS = 1000
LINE = 16
# words of 32 bits, a cache line each: work counter, threads at the barrier, barriers passed,
# passes begun, threads asleep, quit
COUNTER, ARRIVED, PASSED, BEGUN, ASLEEP, QUIT = (LINE * i for i in range(6))
# words of 64 bits behind them: table, its length, and functions and objects of the C library
TABLE, LENGTH, YIELD, LOCK, UNLOCK, WAIT, WAKE, MUTEX, CONDITION = range(48, 57)
OBJECT_BYTES = 256


class NativeStep:
    """A step that native threads can run: pairs of function and argument addresses.

    kept  what the arguments point at
    """

    def __init__(self, team: Team, calls: Sequence[tuple[int, Array]], kept: Any = ()) -> None:
        self.team = team
        self.kept = (kept, [words for _, words in calls])
        self.table = np.array([(f, w.ctypes.data) for f, w in calls], np.int64).reshape(-1, 2)

    def __call__(self) -> None:
        self.team.run(self.table)


def joined(team: Team, steps: Sequence[NativeStep]) -> NativeStep:
    """Return one step that runs these in order."""
    whole = NativeStep(team, ())
    whole.kept = tuple(s.kept for s in steps)
    whole.table = np.ascontiguousarray(np.concatenate([s.table for s in steps]))
    return whole


class Team:
    """`count` threads, the caller's own among them; the others start with the first step."""

    def __init__(self, library: Library, count: int) -> None:
        self.count = count
        self.words = np.zeros(2 * 64, np.int64)
        start = -self.words.ctypes.data % 64 // 8
        self.state = self.words[start : start + 64]
        # the barrier and the counter live in the first six lines
        self.near = self.state[:48].view(np.int32)
        self.objects = np.zeros(2 * OBJECT_BYTES, np.uint8)
        unit = "team"
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        names = ("lead", "help", "stop")
        address = {n: library.function(unit, n, _emit) for n in names}
        self._lead, self._help, self._stop = (kind(address[n]) for n in names)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._pid = 0
        self._prepare()

    def run(self, table: Array) -> None:
        """Run the rows (function, arguments) of an int64 table in order."""
        if not len(table):
            return
        with self._lock:
            if self.count > 1 and self._pid != os.getpid():
                self._start()
            self.state[TABLE], self.state[LENGTH] = table.ctypes.data, len(table)
            self._lead(self.state.ctypes.data, 0, self.count)

    def close(self) -> None:
        """End the threads; a later step starts new ones."""
        with self._lock:
            if self._pid == os.getpid():
                self._stop(self.state.ctypes.data, 0, self.count)
                for thread in self._threads:
                    thread.join()
            self._threads, self._pid = [], 0

    def _start(self) -> None:
        # after a fork the other threads are gone, and so is whoever held the lock
        self._prepare()
        self._pid = os.getpid()
        self._threads = []
        for i in range(1, self.count):
            thread = threading.Thread(
                target=self._help,
                args=(self.state.ctypes.data, i, self.count),
                name=f"clover-cpu-{i}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)

    def _prepare(self) -> None:
        self.near[:] = 0
        self.objects[:] = 0
        c = ctypes.CDLL(None)
        names = {
            YIELD: "sched_yield",
            LOCK: "pthread_mutex_lock",
            UNLOCK: "pthread_mutex_unlock",
            WAIT: "pthread_cond_wait",
            WAKE: "pthread_cond_broadcast",
        }
        for word, name in names.items():
            self.state[word] = ctypes.cast(getattr(c, name), ctypes.c_void_p).value
        mutex = self.objects.ctypes.data
        self.state[MUTEX], self.state[CONDITION] = mutex, mutex + OBJECT_BYTES
        c.pthread_mutex_init(ctypes.c_void_p(mutex), None)
        c.pthread_cond_init(ctypes.c_void_p(mutex + OBJECT_BYTES), None)


def default_threads() -> int:
    """Return CLOVER_RT_CPU_THREADS, or the processors that this process may use."""
    told = os.environ.get("CLOVER_RT_CPU_THREADS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _emit(module: ir.Module) -> None:
    _emit_walk(module)
    _emit_lead(module)
    _emit_help(module)
    _emit_stop(module)


def _emit_walk(module: ir.Module) -> None:
    """walk(state, thread, threads): every step, with a barrier behind each."""
    code = Code(module, "walk", 3)
    state, thread, threads = code.parameters
    table, length = _word(state, TABLE), _word(state, LENGTH)
    counter = state + 4 * COUNTER
    with code.loop(0, length) as i:
        row = table + i * 16
        function, arguments = code.load(I64, row), code.load(I64, row + 8)
        code.call(function, [arguments, thread, threads, counter])
        with code.when(threads > 1):
            _barrier(code, state, threads)
        with code.when(threads.equals(1)):
            code.store(code.const(I32, 0), counter, 4)
    code.end()


def _barrier(code: Code, state: Value, threads: Value) -> None:
    passed = state + 4 * PASSED
    before = code.fresh(passed)
    last = code.atomic_add(state + 4 * ARRIVED, 1).to(I64).equals(threads - 1)

    def release() -> None:
        code.store(code.const(I32, 0), state + 4 * ARRIVED, 4)
        code.store(code.const(I32, 0), state + 4 * COUNTER, 4)
        code.atomic_add(passed, 1)

    def wait() -> None:
        spins = code.var(code.const(I64, 0))
        with code.whilst(lambda: code.fresh(passed).equals(before)):
            spins.v = spins.v + 1
            code.either(
                spins.v < SPINS, code.pause, lambda: code.call(_word(state, YIELD), [], result=True)
            )

    code.either(last, release, wait)


def _emit_lead(module: ir.Module) -> None:
    """lead(state, 0, threads): wake the others and walk with them."""
    code = Code(module, "lead", 3)
    state, _, threads = code.parameters
    with code.when(threads > 1):
        code.atomic_add(state + 4 * BEGUN, 1)
        with code.when(code.fresh(state + 4 * ASLEEP) > 0):
            _wake(code, state)
    code.ir.call(module.globals["walk"], [p.raw for p in code.parameters])
    code.end()


def _wake(code: Code, state: Value) -> None:
    code.call(_word(state, LOCK), [_word(state, MUTEX)], result=True)
    code.call(_word(state, WAKE), [_word(state, CONDITION)], result=True)
    code.call(_word(state, UNLOCK), [_word(state, MUTEX)], result=True)


def _emit_help(module: ir.Module) -> None:
    """help(state, thread, threads): walk every pass that begins until told to quit."""
    code = Code(module, "help", 3)
    state, _, _ = code.parameters
    begun, asleep, quits = (state + 4 * w for w in (BEGUN, ASLEEP, QUIT))
    seen = code.var(code.const(I32, 0))
    with code.whilst(lambda: code.fresh(quits).equals(0)):
        spins = code.var(code.const(I64, 0))
        idle = lambda: code.fresh(begun).equals(seen.v)  # noqa: E731
        with code.whilst(lambda: code.both(idle(), spins.v < SPINS)):
            spins.v = spins.v + 1
            code.pause()
        with code.when(idle()):
            code.call(_word(state, LOCK), [_word(state, MUTEX)], result=True)
            code.atomic_add(asleep, 1)
            still = lambda: code.both(idle(), code.fresh(quits).equals(0))  # noqa: E731
            with code.whilst(still):
                objects = [_word(state, CONDITION), _word(state, MUTEX)]
                code.call(_word(state, WAIT), objects, result=True)
            code.atomic_add(asleep, -1)
            code.call(_word(state, UNLOCK), [_word(state, MUTEX)], result=True)
        with code.when(code.fresh(quits).equals(0)):
            seen.v = seen.v + 1
            code.ir.call(module.globals["walk"], [p.raw for p in code.parameters])
    code.end()


def _emit_stop(module: ir.Module) -> None:
    code = Code(module, "stop", 3)
    state = code.parameters[0]
    code.atomic_add(state + 4 * QUIT, 1)
    _wake(code, state)
    code.end()


def _word(state: Value, index: int) -> Value:
    return state.code.load(I64, state + 8 * index, 8)



def captured(team: Team, steps: Sequence[Step]) -> Step:
    """Return one step for many: native ones in a row become one call of the threads."""
    runs: list[Step] = []
    native: list[NativeStep] = []
    for step in steps:
        if isinstance(step, NativeStep) and step.team is team:
            native.append(step)
            continue
        if native:
            runs.append(joined(team, native))
            native = []
        runs.append(step)
    if native:
        runs.append(joined(team, native))
    if len(runs) == 1:
        return runs[0]

    def run() -> None:
        for step in runs:
            step()

    return run
