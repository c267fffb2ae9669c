"""The generated code of the cpu backend: choosing it, caching it, threads that share its steps."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import threading
import weakref
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from llvmlite import ir

from clover_rt.backend import Tensor, Usage
from clover_rt.cache import cache_folder
from clover_rt.errors import BackendUnavailable
from clover_rt.spec import Format, Precision
from clover_rt_conformance.harness import call
from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.jit import amx, build, isa, jit_kernels
from clover_rt_cpu.jit.attend_tiles import TILE, Tiles
from clover_rt_cpu.jit.kernel import Jit
from clover_rt_cpu.jit.lang import WORD, Code
from clover_rt_cpu.jit.maths import exp, log, softplus
from clover_rt_cpu.jit.product import Inner
from clover_rt_cpu.jit.team import NativeStep, Team, captured
from clover_rt_cpu.jit.values import F32V, I32, I64

# generating code for every processor takes its time: in the full lane
pytestmark = pytest.mark.full
SETS = isa.supported()


@pytest.fixture
def library(tmp_path: Path) -> build.Library:
    return build.Library(isa.make(SETS[0]), tmp_path)


def count_up(module: ir.Module) -> None:
    """Add 1 to each of 8 numbers."""
    code = Code(module, "count_up")
    (numbers,) = code.args(1)
    with code.deal(code.const(numbers.type, 8)) as i:
        at = numbers + i * 4
        code.store(code.load(I32, at) + 1, at)
    code.end()


def counting(library: build.Library, team: Team, numbers: np.ndarray) -> NativeStep:
    function = library.function("count_up", "count_up", count_up)
    return NativeStep(team, [(function, np.array([numbers.ctypes.data], np.int64))], numbers)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_item_of_every_step_is_done_once(library: build.Library, threads: int) -> None:
    numbers = np.zeros(8, np.int32)
    team = Team(library, threads)
    step = captured(team, [counting(library, team, numbers)] * 50)
    for _ in range(40):
        step()
    team.close()
    assert numbers.tolist() == [2000] * 8


def count_listed(module: ir.Module) -> None:
    """Add 1 to a number for each item; how many there are lies in memory."""
    code = Code(module, "count_listed")
    number, listed = code.args(2)
    with code.deal(code.load(I64, listed)):
        code.atomic_add(number, 1)
    code.end()


@pytest.mark.parametrize("later", [1, 7, -1])
def test_a_thread_that_comes_late_takes_nothing_of_a_later_step(
    library: build.Library, later: int
) -> None:
    """Steps share memory: what it takes for the number of its items may be anything by then."""
    function = library.function("count_listed", "count_listed", count_listed)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)
    number, state = np.zeros(1, np.int32), np.zeros(16, np.int64)
    step, ahead = 1000, later & 0xFFFFFFFF
    # three items more than this step's first one is ahead of the next item of the step at hand
    listed = np.array([(ahead << 32) + 3], np.uint64).view(np.int64)
    words = np.array([number.ctypes.data, listed.ctypes.data], np.int64)
    state[WORD] = (step + later) << 32
    kind(function)(words.ctypes.data, 0, 1, state.ctypes.data, step)
    assert (number[0], state[WORD]) == (0, (step + later) << 32)


def test_the_numbers_of_steps_go_round(library: build.Library) -> None:
    numbers = np.zeros(8, np.int32)
    team = Team(library, 3)
    step = counting(library, team, numbers)
    step()
    # 16 steps before the largest number of 32 bits
    team._threads.state[WORD] = -16 << 32
    captured(team, [step] * 40)()
    team.close()
    assert numbers.tolist() == [41] * 8


def test_steps_of_python_and_native_ones_run_in_order(library: build.Library) -> None:
    numbers, seen = np.zeros(8, np.int32), []
    team = Team(library, 2)
    native = counting(library, team, numbers)
    whole = captured(team, [native, native, lambda: seen.append(numbers[0].item()), native])
    whole()
    team.close()
    assert (seen, numbers[0]) == ([2], 3)


def test_threads_that_were_ended_start_again(library: build.Library) -> None:
    numbers = np.zeros(8, np.int32)
    team = Team(library, 3)
    step = counting(library, team, numbers)
    for _ in range(3):
        step()
        team.close()
    assert numbers.tolist() == [3] * 8


def test_a_team_that_nobody_closed_ends_its_threads(library: build.Library) -> None:
    numbers = np.zeros(8, np.int32)
    team = Team(library, 3)
    counting(library, team, numbers)()
    helpers = list(team._threads.threads)
    assert [t.is_alive() for t in helpers] == [True, True]
    del team
    gc.collect()
    for thread in helpers:
        thread.join(60)
    assert [t.is_alive() for t in helpers] == [False, False]


def test_collecting_a_team_waits_for_no_thread(
    library: build.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is collected anywhere, also where a lock is held that an ending thread needs."""
    numbers, waited = np.zeros(8, np.int32), []
    team = Team(library, 2)
    counting(library, team, numbers)()
    (helper,) = team._threads.threads
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", lambda *_: waited.append(1))
        del team
        gc.collect()
    helper.join(60)
    assert (waited, helper.is_alive()) == ([], False)


def test_a_step_keeps_memory_that_its_device_has_freed() -> None:
    device = CpuDevice(workers=1, isa=SETS[0])
    assert device.jit is not None
    x, scratch = (device.alloc(64, Usage.EDGE) for _ in range(2))
    memory = [weakref.ref(b.array.base) for b in (x, scratch)]
    tensors = [Tensor(b, np.dtype(np.uint8), (64,)) for b in (x, scratch)]
    step = jit_kernels(device.jit)["rms_norm"].step([], {"x": tensors[0]}, tensors[1])
    device.free(x)
    device.free(scratch)
    assert [m() is not None for m in memory] == [True, True]
    del step
    assert [m() for m in memory] == [None, None]


def _forked(step: NativeStep, numbers: np.ndarray, answer: multiprocessing.SimpleQueue) -> None:
    step()
    answer.put(numbers.tolist())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_gets_threads_of_its_own(library: build.Library) -> None:
    numbers = np.zeros(8, np.int32)
    team = Team(library, 2)
    step = counting(library, team, numbers)
    step()
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    child = context.Process(target=_forked, args=(step, numbers, answer))
    child.start()
    assert answer.get() == [2] * 8
    child.join()
    team.close()


def test_code_is_taken_from_the_cache_and_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    made: list[str] = []

    def emit(module: ir.Module) -> None:
        made.append(module.name)
        count_up(module)

    def ask() -> None:
        assert build.Library(isa.make(SETS[0]), tmp_path).function("u", "count_up", emit)

    ask()
    ask()
    assert made == ["u"]
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    ask()
    ask()
    assert made == ["u", "u"]


def test_threads_that_ask_for_the_same_code_at_once_get_one_copy(library: build.Library) -> None:
    made: list[str] = []
    second = threading.Event()

    def emit(module: ir.Module) -> None:
        made.append(module.name)
        if len(made) > 1:
            second.set()
        # where another thread could get here too, it has the time to
        second.wait(0.3)
        count_up(module)

    found: list[int] = []
    ask = lambda: found.append(library.function("u", "count_up", emit))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made, len(set(found))) == (["u"], 1)


@pytest.mark.parametrize("kind", ["a file in its place", "no folder at all"])
def test_without_a_cache_code_is_generated_each_time(tmp_path: Path, kind: str) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    folder = blocked if kind.startswith("a file") else blocked / "below"
    found = build.Library(isa.make(SETS[0]), folder).function("u", "count_up", count_up)
    assert found
    assert blocked.read_text() == ""


def test_the_cache_lies_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert cache_folder("cpu") == Path("/some/where/clover-rt/cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder("cpu") == Path.home() / ".cache/clover-rt/cpu"


def test_an_instruction_set_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOVER_RT_CPU_ISA", "mmx")
    with pytest.raises(BackendUnavailable, match="'mmx'") as caught:
        CpuDevice()
    assert caught.value.code == "CRT-3016"
    assert "numpy" in caught.value.fix


def test_numpy_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOVER_RT_CPU_ISA", "numpy")
    assert CpuDevice().jit is None


def test_processors_without_known_features_get_numpy() -> None:
    assert isa.supported({"sse2": True}) == []


class _Unloaded:
    """Generates code for a processor that is not there."""

    def __init__(self, found: isa.Isa) -> None:
        self.machine = build.target_machine(found)
        self.units: dict[str, bytes] = {}

    def function(self, unit: str, name: str, emit: build.Emit) -> int:
        if unit not in self.units:
            self.units[unit] = build.generate(self.machine, unit, emit)
        return 1


class _Still:
    """A team that does nothing."""

    count = 4

    def run(self, table: np.ndarray) -> None:
        assert len(table)


def test_every_kernel_can_be_generated_for_neon() -> None:
    found = Jit.__new__(Jit)
    found.isa = isa.make("neon", host=False)
    library = _Unloaded(found.isa)
    found.library, found.team, found._tiles = library, _Still(), {}
    memory = CpuDevice(isa="numpy")
    memory.kernels = jit_kernels(found)
    for name in memory.kernels:
        spec = import_module(f"clover_rt.ops.{name}").SPEC
        seen = set()
        for case in spec.cases():
            kind = tuple(case.id.split("/")[1:2])
            if kind not in seen:
                seen.add(kind)
                for precision in Precision:
                    call(memory, spec, case, precision)
    memory.close()
    names = {unit.split("_")[0] for unit in library.units}
    assert {"attend", "causal", "experts", "linear", "product", "scan", "topk"} <= names
    assert all(data[:4] == b"\x7fELF" for data in library.units.values())


@pytest.mark.parametrize(
    ("name", "instruction"), [("neon", "sdot"), ("avx512", "vpdpbusd"), ("avx2", "vpmaddubsw")]
)
@pytest.mark.parametrize("fmt", [Format.Q4, Format.Q8])
def test_integer_products_use_the_dot_product_of_the_instruction_set(
    name: str, instruction: str, fmt: Format
) -> None:
    found = isa.make(name, host=False)
    machine = build.target_machine(found)
    text = build.listing(machine, "product", Inner(found, fmt, False, True).emit)
    assert text.count(instruction) >= 8


@pytest.mark.parametrize("fmt", [Format.Q4, Format.Q8])
def test_products_of_many_rows_use_the_tiles_of_amx(fmt: Format) -> None:
    found = isa.make("amx", host=False)
    inner = Inner(found, fmt, False, True)
    machine = build.target_machine(found)
    text = build.listing(machine, "product", lambda module: amx.emit(module, inner))
    # eight groups of columns, for whole tiles and for the last rows
    assert text.count("tdpbssd") == 16
    assert inner.has_many and not Inner(found, fmt, False, False).has_many


def test_attention_in_bfloat16_uses_the_tiles_of_amx() -> None:
    found = isa.make("amx", host=False)
    machine = build.target_machine(found)

    def emit(module: ir.Module) -> None:
        Tiles(module, "attend", TILE, True, found).parts()

    # four tiles of keys by two numbers of a query; columns four at a time, and the last two
    assert build.listing(machine, "attend", emit).count("tdpbf16ps") == 4 * 2 + 4 + 2


def test_amx_is_used_only_where_the_system_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    features = dict.fromkeys((*isa.AMX, *isa.AVX2), True)
    monkeypatch.setattr(isa.platform, "machine", lambda: "x86_64")
    for allows, best in ((True, "amx"), (False, "avx512")):
        monkeypatch.setattr(isa, "may_use_tiles", lambda allows=allows: allows)
        assert isa.supported(features)[0] == best


def test_an_arm_processor_gets_neon_if_it_has_dot_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isa.platform, "machine", lambda: "aarch64")
    assert isa.supported({"neon": True, "dotprod": True}) == ["neon"]
    assert isa.supported({"neon": True}) == []
    monkeypatch.setattr(isa.llvm, "get_host_cpu_features", lambda: {"neon": True, "dotprod": True})
    monkeypatch.setattr(isa, "make", lambda name: name)
    monkeypatch.delenv(isa.VARIABLE, raising=False)
    assert isa.choose() == "neon"


def test_products_of_one_height_keep_their_sums_in_registers() -> None:
    """A spill in an inner loop would cost more than the loop: none on AVX-512."""
    found = isa.make("avx512", host=False)
    machine = build.target_machine(found)
    for fmt in (Format.Q4, Format.Q8):
        text = build.listing(machine, "product", Inner(found, fmt, False, True).emit)
        assert "zmm" in text
        assert not [line for line in text.splitlines() if "zmm" in line and "%rsp" in line]


def values_of(jit: Jit, name: str, formula, x: np.ndarray) -> np.ndarray:
    """Apply a formula of 16 float32 numbers to an array."""

    def emit(module: ir.Module, name: str) -> None:
        code = Code(module, name)
        source, to, count = code.args(3)
        with code.deal(count) as i:
            code.store(formula(code, code.load(F32V, source + i * 64)), to + i * 64)
        code.end()

    out = np.empty_like(x)
    address = jit.library.function(name, name, lambda m: emit(m, name))
    words = np.array([x.ctypes.data, out.ctypes.data, len(x) // 16], np.int64)
    NativeStep(jit.team, [(address, words)])()
    jit.team.close()
    return out


@pytest.fixture(params=SETS)
def jit(request: pytest.FixtureRequest, tmp_path: Path) -> Jit:
    return Jit(isa.make(request.param), 1, tmp_path)


def test_exp_is_right_to_two_units_and_keeps_what_is_not_a_number(jit: Jit) -> None:
    x = np.concatenate([np.linspace(-104, 88.7, 4000), [0, -0.0, 1, -1]]).astype(np.float32)
    x = np.concatenate([x, np.float32([np.inf, -np.inf, np.nan, 1e30, -1e30])])
    x = np.resize(x, -(-len(x) // 16) * 16)
    found = values_of(jit, "exp", exp, x)
    with np.errstate(all="ignore"):
        want = np.exp(x.astype(np.float64)).astype(np.float32)
    finite = np.isfinite(want)
    assert (np.isnan(found) == np.isnan(want)).all()
    assert (found[np.isinf(want)] == np.inf).all()
    error = np.abs(found[finite] - want[finite])
    assert (error <= 2 * np.spacing(want[finite])).all()
    assert found[x == 0].tolist() == [1.0] * int((x == 0).sum())


def test_softplus_is_right_where_it_is_small_and_where_it_is_large(jit: Jit) -> None:
    x = np.linspace(-80, 80, 1600).astype(np.float32)
    found = values_of(jit, "softplus", softplus, x)
    exact = x.astype(np.float64)
    want = np.maximum(exact, 0) + np.log1p(np.exp(-np.abs(exact)))
    assert np.allclose(found, want, rtol=4e-7, atol=0)


def test_log_is_right_to_float64(jit: Jit) -> None:
    x = np.float32(np.geomspace(1e-30, 1e30, 1600))

    def rounded(code: Code, v):
        from clover_rt_cpu.jit.values import F32, F64

        return log(code, v.to(F64)).to(F32)

    # 16 numbers at a time are handled one by one in kernels; the formula is the same
    found = values_of(jit, "log", rounded, x)
    want = np.log(x.astype(np.float64)).astype(np.float32)
    assert np.allclose(found, want, rtol=1.2e-7, atol=1e-9)
