"""Threads that walk a table of native steps together.

A pass is one native call a thread. Threads take the items of a step until none is left; whoever
finishes the last one opens the next step. So a thread that the system holds up is not waited for
unless it is in the middle of an item, and joins wherever the others are. A thread that finds
nothing to do spins for up to 50 us and then yields its processor; between passes the helpers spin
as long for the next one and then sleep until they are woken.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from clover_rt.backend import Step
from clover_rt_cpu.jit.build import Library
from clover_rt_cpu.jit.lang import WORD, Code
from clover_rt_cpu.jit.values import I32, I64, Value

Array = npt.NDArray[Any]
SPINS = 1000
# 64-bit words of the state, a cache line each where threads write them: step and next item, items
# done (both as lang.py says), threads inside a pass, whether there is a pass, threads asleep, quit
INSIDE, ACTIVE, ASLEEP, QUIT = 16, 24, 32, 40
# then the pass: its table, its length, the number of its first step
TABLE, LENGTH, FIRST = 48, 49, 50
# and functions and objects of the C library
YIELD, LOCK, UNLOCK, WAIT, WAKE, MUTEX, CONDITION = range(56, 63)
WORDS = 64
OBJECT_BYTES = 256


class NativeStep:
    """A step that native threads can run: pairs of function and argument addresses.

    kept  what the arguments point at
    """

    def __init__(self, team: Team, calls: Sequence[tuple[int, Array]], kept: Any = ()) -> None:
        self.team = team
        self.kept: tuple[Any, ...] = (kept, [words for _, words in calls])
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
        self._threads = _Threads(library, count)
        self._lock = threading.Lock()
        # told to end but not waited for: this may be called wherever memory is collected, also
        # where somebody holds a lock that ending threads need
        self._end = weakref.finalize(self, _Threads.tell, self._threads)

    def run(self, table: Array) -> None:
        """Run the rows (function, arguments) of an int64 table in order."""
        if len(table):
            with self._lock:
                self._threads.run(table)

    def close(self) -> None:
        """End the threads; a later step starts new ones."""
        with self._lock:
            self._threads.stop()


class _Threads:
    """The threads of a team, and the memory that they share: each keeps it until it has ended."""

    def __init__(self, library: Library, count: int) -> None:
        self.library = library
        self.count = count
        words = np.zeros(WORDS + 8, np.int64)
        start = -words.ctypes.data % 64 // 8
        self.state = words[start : start + WORDS]
        self.at = self.state.ctypes.data
        self.objects = np.zeros(2 * OBJECT_BYTES, np.uint8)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        address = [library.function("team", n, _emit) for n in ("lead", "help", "stop")]
        self.lead, self.native_help, self.end = (kind(a) for a in address)
        self.threads: list[threading.Thread] = []
        self.owner = 0

    def run(self, table: Array) -> None:
        # after a fork the other threads are gone
        if self.owner != os.getpid():
            self._start()
        self.state[TABLE], self.state[LENGTH] = table.ctypes.data, len(table)
        self.lead(self.at, 0, self.count)

    def help(self, index: int) -> None:
        """Be one of the threads, until they are told to end."""
        self.native_help(self.at, index, self.count)

    def tell(self) -> None:
        """Tell the threads to end."""
        if self.owner == os.getpid():
            self.end(self.at, 0, self.count)

    def stop(self) -> None:
        """End the threads."""
        self.tell()
        if self.owner == os.getpid():
            for thread in self.threads:
                thread.join()
        self.threads, self.owner = [], 0

    def _start(self) -> None:
        self._prepare()
        self.owner = os.getpid()
        self.threads = []
        for i in range(1, self.count):
            name = f"clover-cpu-{i}"
            thread = threading.Thread(target=self.help, args=(i,), name=name, daemon=True)
            thread.start()
            self.threads.append(thread)

    def _prepare(self) -> None:
        """Bring the shared memory into its first state."""
        self.state[:] = 0
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
            self.state[word] = ctypes.cast(getattr(c, name), ctypes.c_void_p).value or 0
        mutex = self.objects.ctypes.data
        self.state[MUTEX], self.state[CONDITION] = mutex, mutex + OBJECT_BYTES
        c.pthread_mutex_init(ctypes.c_void_p(mutex), None)
        c.pthread_cond_init(ctypes.c_void_p(mutex + OBJECT_BYTES), None)


def _emit(module: ir.Module) -> None:
    _emit_walk(module)
    _emit_lead(module)
    _emit_help(module)
    _emit_stop(module)


def _emit_walk(module: ir.Module) -> None:
    """walk(state, thread, threads): work on the step at hand until the pass is over."""
    code = Code(module, "walk", 3)
    state, thread, threads = code.parameters
    table, length, first = (_word(state, n) for n in (TABLE, LENGTH, FIRST))
    word = state + 8 * WORD

    def done() -> Value:
        """Return how many steps of the pass are over; numbers of steps go round."""
        return ((code.fresh(word, I64) >> 32) - first) & 0xFFFFFFFF

    at = code.var(done())
    with code.whilst(lambda: at.v < length):
        row = table + at.v * 16
        step = (first + at.v) & 0xFFFFFFFF
        arguments = code.load(I64, row + 8)
        code.call(code.load(I64, row), [arguments, thread, threads, state, step])
        _idle(code, state, lambda: done().equals(at.v))
        at.v = done()
    code.end()


def _idle(code: Code, state: Value, condition: Callable[[], Value]) -> None:
    """Wait as long as a condition holds."""
    spins = code.var(code.const(I64, 0))
    give = lambda: code.call(_word(state, YIELD), [], result=True)  # noqa: E731
    with code.whilst(condition):
        spins.v = spins.v + 1
        code.either(spins.v < SPINS, code.pause, give)


def _emit_lead(module: ir.Module) -> None:
    """lead(state, 0, threads): open a pass, walk it, and wait for helpers to be out of it."""
    code = Code(module, "lead", 3)
    state, _, _ = code.parameters
    first = code.fresh(state + 8 * WORD, I64) >> 32
    code.store(first, state + 8 * FIRST, 8)
    code.put_fresh(code.const(I32, 1), state + 8 * ACTIVE)
    with code.when(code.fresh(state + 8 * ASLEEP) > 0):
        _wake(code, state)
    code.ir.call(module.globals["walk"], [p.raw for p in code.parameters])
    code.put_fresh(code.const(I32, 0), state + 8 * ACTIVE)
    _idle(code, state, lambda: code.fresh(state + 8 * INSIDE) > 0)
    code.end()


def _wake(code: Code, state: Value) -> None:
    code.call(_word(state, LOCK), [_word(state, MUTEX)], result=True)
    code.call(_word(state, WAKE), [_word(state, CONDITION)], result=True)
    code.call(_word(state, UNLOCK), [_word(state, MUTEX)], result=True)


def _emit_help(module: ir.Module) -> None:
    """help(state, thread, threads): join every pass until told to quit."""
    code = Code(module, "help", 3)
    state = code.parameters[0]
    active, inside, asleep, quits = (state + 8 * w for w in (ACTIVE, INSIDE, ASLEEP, QUIT))

    def is_idle() -> Value:
        return code.both(code.fresh(active).equals(0), code.fresh(quits).equals(0))

    with code.whilst(lambda: code.fresh(quits).equals(0)):
        spins = code.var(code.const(I64, 0))
        with code.whilst(lambda: code.both(is_idle(), spins.v < SPINS)):
            spins.v = spins.v + 1
            code.pause()
        with code.when(is_idle()):
            code.call(_word(state, LOCK), [_word(state, MUTEX)], result=True)
            code.atomic_add(asleep, 1)
            with code.whilst(is_idle):
                objects = [_word(state, CONDITION), _word(state, MUTEX)]
                code.call(_word(state, WAIT), objects, result=True)
            code.atomic_add(asleep, -1)
            code.call(_word(state, UNLOCK), [_word(state, MUTEX)], result=True)
        code.atomic_add(inside, 1)
        # only now is it certain that the pass stays until this thread has left it
        with code.when(code.fresh(active) > 0):
            code.ir.call(module.globals["walk"], [p.raw for p in code.parameters])
        code.atomic_add(inside, -1)
    code.end()


def _emit_stop(module: ir.Module) -> None:
    code = Code(module, "stop", 3)
    state = code.parameters[0]
    code.atomic_add(state + 8 * QUIT, 1)
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
