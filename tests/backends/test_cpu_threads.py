"""The number of threads of the cpu backend: what may be asked for, and how many there are else."""

from __future__ import annotations

from pathlib import Path

import pytest

import clover_rt
from clover_rt.api import EndEvent, open_model
from clover_rt.cli.summary import summary
from clover_rt.errors import BadInput
from clover_rt_cpu import threads
from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.threads import NO_QUOTA, cores, default_threads, quota


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process seem to have processors 0 to 7, in pairs of a core, and no quota."""
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    monkeypatch.setattr(threads, "processors", lambda: set(range(8)))
    monkeypatch.setattr(threads, "CPU_MAX", Path("/there/is/none"))


def siblings(folder: Path, pairs: list[str]) -> Path:
    """Write what the system tells of processors that share a core."""
    for i, text in enumerate(pairs):
        path = folder / f"cpu{i}" / "topology"
        path.mkdir(parents=True)
        (path / "thread_siblings_list").write_text(text + "\n")
    return folder


def test_two_processors_of_one_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = siblings(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    monkeypatch.setattr(threads, "TOPOLOGY", folder)
    assert default_threads() == 4
    # a process that may use one of each pair has as many cores as processors
    assert cores({0, 1}, folder) == 2
    assert cores({1, 5}, folder) == 1


def test_where_cores_are_not_told_every_processor_counts(tmp_path: Path) -> None:
    assert cores({0, 1, 2}, tmp_path) == 3


def test_a_quota_of_processors_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpu.max"
    for text, count in (("150000 100000\n", 2), ("max 100000\n", NO_QUOTA), ("", NO_QUOTA)):
        path.write_text(text)
        assert quota(path) == count
    assert quota(tmp_path / "none") == NO_QUOTA
    path.write_text("250000 100000\n")
    monkeypatch.setattr(threads, "CPU_MAX", path)
    monkeypatch.setattr(threads, "TOPOLOGY", tmp_path)
    assert default_threads() == 3


def test_the_environment_can_tell_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.VARIABLE, "5")
    assert default_threads() == 5
    device = CpuDevice(isa="numpy")
    assert device.threads == 5


@pytest.mark.parametrize("told", ["0", "9", "-1", "two", "1.5"])
def test_a_variable_that_is_no_number_of_threads_is_refused(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv(threads.VARIABLE, told)
    with pytest.raises(BadInput, match=threads.VARIABLE) as caught:
        default_threads()
    assert caught.value.code == "CRT-1062"
    assert told in caught.value.what and "8 processors" in caught.value.evidence


@pytest.mark.parametrize("asked", [0, 9, -1, True, 1.5, "2"])
def test_a_number_of_threads_that_cannot_be_is_refused_with_both_numbers(asked: object) -> None:
    with pytest.raises(BadInput, match="threads=") as caught:
        open_model(threads=asked)  # type: ignore[arg-type]
    assert caught.value.code == "CRT-1062"
    assert repr(asked) in caught.value.what and "8 processors" in caught.value.evidence


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_runs_on_the_threads_asked_for_and_says_so(count: int) -> None:
    with clover_rt.load(threads=count, context=64) as model:
        device = model.plan.devices[next(iter(model.plan.devices))]
        assert device.threads == count
        if device.jit is not None:
            assert device.jit.team.count == count
        *_, end = model.generate("Hi", mode="ar", max_new_tokens=2)
    assert isinstance(end, EndEvent)
    assert end.stats["threads"] == count
    shown = "1 thread" if count == 1 else f"{count} threads"
    assert f" · {shown} · " in summary(end.stats, end.finish_reason)
