"""The cuda backend without a card: what its probe says, and its kernels under the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from clover_rt.errors import BackendUnavailable, OutOfMemory
from clover_rt.ops import HOT, OPS
from clover_rt.plugins import choose
from clover_rt_conformance import Suite
from clover_rt_cuda import backend
from clover_rt_cuda.backend import INTERPRET, CudaBackend

ENVIRONMENT = {INTERPRET: "1", "TRITON_INTERPRET": "1"}
BUILT_WITHOUT_CUDA = torch.version.cuda is None


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh process, which has loaded nothing yet."""
    given = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT}
    return subprocess.run(
        [sys.executable, "-c", script], env=given | environment, capture_output=True, text=True
    )


def test_loading_the_plugin_loads_neither_torch_nor_triton() -> None:
    script = (
        "import sys, clover_rt_cuda; clover_rt_cuda.clover_rt_backends()\n"
        "print(sorted({'torch', 'triton'} & set(sys.modules)))"
    )
    assert run(script).stdout.strip() == "[]"


@pytest.mark.parametrize("absent", ["torch", "triton"])
def test_a_missing_library_is_named_by_the_probe(
    absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = util.find_spec
    monkeypatch.setattr(
        "clover_rt_cuda.backend.find_spec", lambda name: None if name == absent else real(name)
    )
    probe = CudaBackend().probe()
    assert probe.devices == ()
    assert probe.problem == f"{absent} cannot be imported"
    assert "pip install --force-reinstall torch --index-url" in probe.fix


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("3.3.1", "triton 3.3.1 is too old; the kernels need 3.4 or newer"),
        ("2.1.0+rocm5.7", "triton 2.1.0+rocm5.7 is too old; the kernels need 3.4 or newer"),
        ("3.4.0+rocm6.4", ""),
        ("3.10.0", ""),
        ("4.0", ""),
        ("of tomorrow", ""),
    ],
)
def test_a_triton_that_is_too_old_is_told_with_the_least_version(
    version: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "__init__.py").write_text(f'"""a comment"""\n__version__ = \'{version}\'\n')
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(backend, "find_spec", lambda name: spec)
    assert backend.lacking() == says


def test_the_version_of_triton_is_read_without_loading_it() -> None:
    script = (
        "import sys; from clover_rt_cuda.backend import triton_version\n"
        "print(triton_version(), 'triton' in sys.modules)"
    )
    assert run(script).stdout.strip() == f"{metadata.version('triton')} False"


@pytest.mark.parametrize(
    "error",
    [OSError("libcudart.so.13: cannot open shared object file"), ImportError("bad magic number")],
    ids=["library", "package"],
)
def test_a_torch_that_cannot_be_loaded_is_told_as_such_with_a_command(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, *args: Any) -> None:
            if name == "torch":
                raise error

    monkeypatch.delenv(INTERPRET, raising=False)
    monkeypatch.setattr(backend, "lacking", lambda: "")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    probe = CudaBackend().probe()
    assert probe.devices == ()
    assert probe.problem == f"torch cannot be imported: {type(error).__name__}: {error}"
    assert "pip install --force-reinstall torch" in probe.fix


def test_a_triton_that_cannot_be_loaded_is_told_as_such_when_a_card_is_opened() -> None:
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "from clover_rt.errors import BackendUnavailable\n"
        "from clover_rt.backend import DeviceInfo\n"
        "from clover_rt_cuda.backend import CudaBackend\n"
        "try: CudaBackend().open(DeviceInfo('cuda:0', 'a card'))\n"
        "except BackendUnavailable as error: print(error.code, error.evidence, error.fix)\n"
    )
    said = run(script).stdout
    assert said.startswith("CRT-3522 ModuleNotFoundError: ")
    assert "pip install --force-reinstall torch" in said


@pytest.mark.skipif(not BUILT_WITHOUT_CUDA, reason="this torch is built with CUDA")
def test_a_torch_without_cuda_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INTERPRET, raising=False)
    probe = CudaBackend().probe()
    assert probe.devices == ()
    assert "built without CUDA" in probe.problem
    assert "pip install --force-reinstall torch --index-url" in probe.fix


def test_the_interpreter_is_offered_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(INTERPRET, raising=False)
    assert "interpreter" not in [d.id for d in CudaBackend().probe().devices]
    monkeypatch.setenv(INTERPRET, "1")
    (device,) = [d for d in CudaBackend().probe().devices if d.id == "interpreter"]
    assert device.is_software


GB = 1 << 30


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return cards(GB..., archs, kinds): make torch see cards of these sizes.

    made        what torch has code for
    version     (major, minor) of each card
    integrated  the sizes of those that are part of a processor
    """
    monkeypatch.delenv(INTERPRET, raising=False)
    (tmp_path / "version").write_text("570.86.15\n")
    monkeypatch.setattr(backend, "DRIVER", tmp_path / "version")

    def see(
        *sizes: int,
        made: tuple[str, ...] = ("sm_80", "sm_90", "compute_90"),
        version: tuple[tuple[int, int], ...] = (),
        integrated: tuple[int, ...] = (),
    ) -> None:
        seen = []
        for gb, (major, minor) in zip(sizes, version or [(8, 9)] * len(sizes), strict=True):
            kind = {"major": major, "minor": minor, "is_integrated": int(gb in integrated)}
            seen.append(SimpleNamespace(name=f"GeForce {gb}", total_memory=gb * GB, **kind))
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(made))
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(seen))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: seen[i])

    return see


@pytest.mark.parametrize(
    ("made", "card", "fits"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90", (8, 9), False),
        ("compute_80", (12, 0), True),
        ("compute_120", (9, 0), False),
        ("sm_120", (12, 1), True),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("compute_90a", (12, 0), False),
        ("sm_100f", (10, 3), True),
        ("", (12, 0), True),
    ],
)
def test_code_runs_on_its_major_version_and_what_is_portable_on_newer_ones(
    made: str, card: tuple[int, int], fits: bool
) -> None:
    assert backend.has_code(*card, [made] if made else []) is fits


@pytest.mark.parametrize(
    ("made", "version", "index"),
    [(("sm_80", "sm_90"), (12, 0), "cu130"), (("sm_75", "sm_80"), (6, 1), "cu126")],
    ids=["newer", "older"],
)
def test_a_card_that_torch_has_no_code_for_is_left_out_with_the_reason_and_a_command(
    cards: Any, made: tuple[str, ...], version: tuple[int, int], index: str
) -> None:
    cards(32, made=made, version=(version,))
    probe = CudaBackend().probe()
    assert probe.devices == ()
    arch = f"sm_{version[0]}{version[1]}"
    assert f"has code for {', '.join(made)}, not for {arch} (GeForce 32)" in probe.problem
    assert (
        f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{index}"
        in (probe.fix)
    )


def test_a_card_beside_one_without_code_is_told_with_why_the_other_is_out(cards: Any) -> None:
    cards(8, 32, made=("sm_80",), version=((8, 9), (12, 0)))
    (card,) = CudaBackend().probe().devices
    told = card.notes["chosen"]
    assert told.startswith("the only NVIDIA card that torch has code for; torch ")
    assert told.endswith("has code for sm_80, not for sm_120 (GeForce 32)")


def test_a_driver_that_raises_is_a_problem_and_no_error(
    cards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(24)

    def broken(index: int) -> Any:
        raise RuntimeError("CUDA error: unknown error")

    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    probe = CudaBackend().probe()
    assert "RuntimeError: CUDA error: unknown error" in probe.problem
    assert "clover-rt doctor" in probe.fix


def test_a_processors_graphics_is_used_only_by_its_name(cards: Any) -> None:
    cards(24, 128, integrated=(128,))
    probe = CudaBackend().probe()
    assert choose("cuda", probe, None).id == "cuda:0"
    assert probe.devices[0].notes["chosen"] == "the only NVIDIA card"
    assert choose("cuda", probe, "cuda:1").only_by_name == "it is part of a processor"
    cards(128, integrated=(128,))
    with pytest.raises(BackendUnavailable, match="it is part of a processor"):
        choose("cuda", CudaBackend().probe(), None)


def test_the_interpreter_alone_does_not_hide_why_there_is_no_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INTERPRET, "1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable, match="finds no usable card") as caught:
        choose("cuda", CudaBackend().probe(), None)
    assert "nvidia-smi" in caught.value.evidence


def test_a_card_is_told_with_its_driver_and_why_it_is_chosen(cards: Any) -> None:
    cards(24)
    (card,) = CudaBackend().probe().devices
    assert card.notes["driver"] == "570.86.15"
    assert card.notes["chosen"] == "the only NVIDIA card"
    assert not card.only_by_name


def test_the_card_with_the_most_memory_is_chosen_and_the_others_by_their_names(cards: Any) -> None:
    cards(8, 24, 16)
    probe = CudaBackend().probe()
    first = choose("cuda", probe, None)
    assert (first.id, first.notes["chosen"]) == ("cuda:1", "the NVIDIA card with the most memory")
    assert {d.id: d.only_by_name for d in probe.devices if d.id != "cuda:1"} == {
        "cuda:0": "cuda:1 comes first",
        "cuda:2": "cuda:1 comes first",
    }
    named = choose("cuda", probe, "cuda:2")
    assert named.notes["chosen"] == "by its name; not by itself, since cuda:1 comes first"


def test_of_equal_cards_the_first_is_chosen(cards: Any) -> None:
    cards(24, 24)
    first = choose("cuda", CudaBackend().probe(), None)
    assert first.id == "cuda:0"
    assert first.notes["chosen"] == "the first of 2 NVIDIA cards with the most memory"


def test_a_driver_without_a_module_or_a_library_is_told_as_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(backend, "DRIVER", tmp_path / "absent")
    monkeypatch.setattr(backend, "LIBRARY", str(tmp_path / "libcuda.so.1"))
    assert backend.driver_version() == "unknown"


def test_the_interpreter_is_refused_where_triton_compiles_already() -> None:
    script = (
        "import triton\n"
        "from clover_rt_cuda.backend import INTERPRETER, CudaBackend\n"
        "from clover_rt.errors import BackendUnavailable\n"
        "try: CudaBackend().open(INTERPRETER)\n"
        "except BackendUnavailable as error: print(error.code)\n"
    )
    assert run(script).stdout.strip() == "CRT-3520"


def test_memory_that_does_not_fit_is_told_with_the_tensor_and_both_numbers() -> None:
    from clover_rt.backend import Usage
    from clover_rt_cuda.ahead import Recorder

    device = Recorder()
    device.torch = torch.device("cpu")
    with pytest.raises(OutOfMemory) as caught:
        device.zeros(1 << 50, torch.float32, "layers.3.mlp.experts.down_proj")
    error = caught.value
    assert error.code == "CRT-3230"
    assert error.what.startswith(f"layers.3.mlp.experts.down_proj needs {1 << 52} bytes")
    assert f"requested {1 << 52} bytes, free " in error.evidence
    # what helps most comes first: weights do not shrink with the context
    weights = [error.fix.index(part) for part in ("--format q4", "other programs", "--context")]
    assert weights == sorted(weights)
    with pytest.raises(OutOfMemory) as caught:
        device.alloc(1 << 50, Usage.STATE)
    caches = [caught.value.fix.index(p) for p in ("--context", "--format q4", "other programs")]
    assert caches == sorted(caches)


def test_there_is_a_kernel_for_every_primitive() -> None:
    from clover_rt_cuda.kernels import KERNELS

    assert {name for name, spec in OPS.items() if spec.reference is not None} <= set(KERNELS)


class Interpreted(Suite):
    """Cases on the interpreter, in a worker of their own."""

    backend = "cuda"
    device = "interpreter"
    environment: ClassVar[dict[str, str]] = ENVIRONMENT
    # the interpreter takes seconds where a card takes microseconds
    timeout_s = 900.0


class TestBoundaries(Interpreted):
    """The smallest case that has the boundary, one or a few an op; all others: the full lane."""

    require: ClassVar[tuple[str, ...]] = HOT
    cases: ClassVar[tuple[str, ...]] = (
        "device/copies",
        "device/new-memory-is-zero",
        "begin/pages",
        "begin/counts",
        "embed_rows/q4-32/T=33",
        "embed_rows/q8/T=1",
        "linear/q4-64/T=33,N=65,K=192/residual",
        "linear/q8/T=1,N=257,K=192/residual",
        "linear/bf16/T=7,N=65,K=200",
        "linear/f32/T=3,N=1,K=7",
        "linear/q4-128/T=0,N=64,K=128",
        "expert_gemm/q4-32/T=7/spread",
        "expert_gemm/q8/T=33/one-expert",
        "expert_gemm/bf16/T=33/shared",
        "expert_gemm/f32/T=1/last-expert",
        "expert_gemm/q4-64/T=0/spread",
        "group_rows/E=16,R=4/T=33/out-of-range",
        "router_topk/E=16,R=4/four-sequences",
        "router_topk/one-nan",
        "router_topk/all-minus-inf",
        "coreset/E=16,R=4,p=0.5/four-sequences",
        "coreset/ties",
        "combine/R=8/T=33",
        "gdn_gates/H=4/T=33",
        "gated_norm/H=4,V=24/T=33",
        "rms_norm/G=3,K=24/T=31/offset=1",
        "output_gate/N=129/T=33",
        "rope/H=3,K=32,r=16/four-sequences",
        "kv_append/over-pages",
        "causal_conv/C=56/four-sequences",
        "block_scan/H=4,K=16,V=24/four-sequences",
        "block_scan/H=4,K=16,V=24/commit8/equal-keys",
        "block_scan/H=4,K=16,V=24/commit33",
        "block_scan/equal-keys-kept/commit64",
        "block_memory/H=4,K=16,V=24/preview33",
        "advance/several",
        "attend/H=4,K=32/x300/preview32@0",
        "attend/H=4,K=32/x1/verify8@200",
        "attend/H=3,K=20/x1/four-sequences",
        "confidence_topk/q4-32/top=8/verify8",
        "confidence_topk/bf16/top=64/two-slots",
        "confidence_topk/f32/top=4/preview8/ties",
        "confidence_topk/f32/top=4/preview8/nan-unwanted",
        "confidence_topk/q8/top=1/none-wanted",
    )


@pytest.mark.full
class TestEverything(Interpreted):
    """Every case of every contract, and the device's memory."""

    require: ClassVar[tuple[str, ...]] = HOT
    ops: ClassVar[tuple[str, ...]] = (
        "device",
        *(name for name, spec in OPS.items() if spec.reference is not None),
    )


def test_the_boundaries_name_every_primitive() -> None:
    named = {case.split("/")[0] for case in TestBoundaries.cases}
    primitives: dict[str, Any] = {n: s for n, s in OPS.items() if s.reference is not None}
    assert set(primitives) <= named
