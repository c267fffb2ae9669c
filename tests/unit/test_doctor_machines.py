"""Whole machines, each with exactly its findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clover_rt.backend import DeviceInfo
from clover_rt.doctor import examine, render
from clover_rt.doctor.host import DONE, Ran
from clover_rt.plugins import Status
from tests.unit.doctor_machines import (
    BASE,
    CPU,
    GIB,
    HUNG,
    ME,
    RENDER,
    SEGV,
    Machine,
    amd,
    nvidia,
    torch,
    vulkan_device,
)

ROOTLESS = {
    "/run/.containerenv": "",
    "/proc/self/uid_map": "0 1000 1\n1 100000 65536",
}
WSL = {"/proc/version": "Linux version 6.6.87.2-microsoft-standard-WSL2"}
ICD, OTHER_ICD = "/etc/OpenCL/vendors/amd.icd", "/etc/OpenCL/vendors/bad.icd"
LIB = "/opt/amd/libamdocl64.so"
RADV, LVP = "/usr/share/vulkan/icd.d/radeon_icd.json", "/usr/share/vulkan/icd.d/lvp_icd.json"
LLVMPIPE = vulkan_device("cpu", "llvmpipe")
INSIDE = Status(
    *("rocm", "rocm", "1", "1.1", "usable", ""),
    devices=(
        DeviceInfo(
            *("hip:0", "Radeon 8060S", "integrated"),
            notes={"engine": "triton"},
            only_by_name="it is part of a processor",
        ),
    ),
)
NO_AMDGPU = {p: t for p, t in amd().files.items() if "amdgpu" not in p and "/kfd/" not in p}
INTEL = {
    "/sys/bus/pci/devices/0000:00:02.0/class": "0x030000",
    "/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086",
    "/sys/bus/pci/devices/0000:00:02.0/device": "0x46a6",
}
ROOTLESS_AMD = {p: (0o660, 65534, 65534) for p in amd().nodes}
TWO_CARDS = amd() + amd("0000:43:00.0", node=2, render=129)
IGPU = amd("0000:0e:00.0", 100306, node=3, render=130, vram=GIB // 2)


def crashing_driver(environ):
    """Answer as a loader does whose bad driver crashes: with it alone, or with all."""
    return (
        SEGV
        if environ.get("OCL_ICD_VENDORS", OTHER_ICD) == OTHER_ICD
        else {
            "loader": "libOpenCL.so.1",
            "platforms": [],
        }
    )


# name: (machine, codes of its findings, exit code)
MACHINES = {
    "bare-server": (Machine(), [], 0),
    "bare-laptop": (Machine(files=INTEL), ["CRT-5150"], 0),
    "amd-card-in-order": (amd(), [], 0),
    "missing-group": (replace(amd(), gids=frozenset({ME})), ["CRT-5104"], 1),
    "group-without-a-name": (replace(amd(gid=993), gids=frozenset({ME})), ["CRT-5104"], 1),
    "mode-without-write": (amd(mode=0o640), ["CRT-5106"], 1),
    "rootless-container": (
        replace(amd(), files=amd().files | ROOTLESS, nodes=ROOTLESS_AMD),
        ["CRT-5105"],
        1,
    ),
    "container-without-nodes": (
        replace(amd(), files=amd().files | {"/.dockerenv": ""}, nodes={}),
        ["CRT-5103"],
        1,
    ),
    "amdgpu-not-loaded": (
        Machine(files=NO_AMDGPU, backends=(CPU,)),
        ["CRT-5101", "CRT-5150"],
        1,
    ),
    "no-compute-node": (
        replace(amd(), nodes={"/dev/dri/renderD128": (0o660, 0, RENDER)}),
        ["CRT-5102"],
        1,
    ),
    "wsl-in-order": (
        Machine(files=WSL, nodes={"/dev/dxg": (0o666, 0, 0)}),
        ["CRT-5110"],
        0,
    ),
    "wsl-rocm-not-told": (
        Machine(files=WSL, nodes={"/dev/dxg": (0o666, 0, 0)})
        + torch(hip="7.0", arch=["gfx1201"], available=False, version="2.9.0+rocm7.0"),
        ["CRT-5112", "CRT-5110"],
        1,
    ),
    "wsl-1": (Machine(files=WSL), ["CRT-5111"], 1),
    "override-wrong": (
        amd() + Machine(environ={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}),
        ["CRT-5120"],
        1,
    ),
    "override-needless": (
        amd() + Machine(environ={"HSA_OVERRIDE_GFX_VERSION": "12.0.1"}),
        ["CRT-5121"],
        1,
    ),
    "override-for-one-node": (
        amd()
        + amd("0000:43:00.0", 100306, node=2, render=129)
        + Machine(environ={"HSA_OVERRIDE_GFX_VERSION_2": "10.3.0"}),
        ["CRT-5120", "CRT-5140"],
        1,
    ),
    "override-for-no-node": (
        amd() + Machine(environ={"HSA_OVERRIDE_GFX_VERSION_7": "11.0.0"}),
        ["CRT-5122"],
        1,
    ),
    "override-malformed": (
        amd() + Machine(environ={"HSA_OVERRIDE_GFX_VERSION": "gfx1100"}),
        ["CRT-5123"],
        1,
    ),
    "two-cards-and-an-igpu": (TWO_CARDS + IGPU, ["CRT-5140"], 0),
    "visibility-hides-a-card": (
        TWO_CARDS + Machine(environ={"HIP_VISIBLE_DEVICES": "1"}),
        ["CRT-5130"],
        1,
    ),
    "visibility-hides-all": (
        nvidia() + Machine(environ={"CUDA_VISIBLE_DEVICES": ""}),
        ["CRT-5130"],
        1,
    ),
    "arch-not-in-the-build": (
        amd() + torch(hip="6.2", arch=["gfx1100", "gfx942"]),
        ["CRT-5301"],
        1,
    ),
    "arch-in-the-build": (amd() + torch(hip="7.0", arch=["gfx1100", "gfx1201"]), [], 0),
    "torch-for-cpu-beside-a-card": (amd() + torch(version="2.13.0+cpu"), ["CRT-5302"], 1),
    "torch-sees-nothing": (
        amd() + torch(hip="7.0", arch=["gfx1201"], available=False),
        ["CRT-5304"],
        1,
    ),
    "torch-cannot-be-imported": (
        Machine(
            packages={"torch": "2.13.0"},
            children={"torch": Ran(DONE, 1, err="ImportError: libgomp.so.1: cannot open")},
        ),
        ["CRT-5303"],
        1,
    ),
    "nvidia-in-order": (nvidia() + torch(cuda="13.0", arch=["sm_90", "sm_120"]), [], 0),
    "nvidia-driver-too-old": (
        nvidia("535.104.05") + torch(cuda="13.0", arch=["sm_90", "sm_120"], available=False),
        ["CRT-5202"],
        1,
    ),
    "nvidia-driver-not-loaded": (
        Machine(files={p: t for p, t in nvidia().files.items() if p.startswith("/sys")}),
        ["CRT-5201", "CRT-5150"],
        1,
    ),
    "nvidia-smi-mismatch": (
        replace(nvidia(), programs={"nvidia-smi": Ran(DONE, 18, "version mismatch\n")}),
        ["CRT-5203"],
        1,
    ),
    "nvidia-smi-hangs": (replace(nvidia(), programs={"nvidia-smi": HUNG}), ["CRT-5002"], 1),
    "nvidia-container-without-nodes": (
        replace(nvidia(), files=nvidia().files | {"/.dockerenv": ""}, nodes={}),
        ["CRT-5103"],
        1,
    ),
    "opencl-without-icd": (
        amd() + Machine(children={"opencl": {"loader": "libOpenCL.so.1", "platforms": []}}),
        ["CRT-5401"],
        1,
    ),
    "opencl-library-gone": (
        amd()
        + Machine(
            files={ICD: LIB},
            children={"opencl": {"loader": "libOpenCL.so.1", "platforms": []}},
        ),
        ["CRT-5402"],
        1,
    ),
    "opencl-driver-crashes": (
        Machine(
            files={ICD: "libamdocl64.so", OTHER_ICD: "libbad.so"},
            children={"opencl": crashing_driver},
        ),
        ["CRT-5403"],
        1,
    ),
    "opencl-hangs": (
        Machine(files={ICD: "libamdocl64.so"}, children={"opencl": HUNG}),
        ["CRT-5002"],
        1,
    ),
    "vulkan-without-driver": (
        amd() + Machine(children={"vulkan": {"loader": "libvulkan.so.1", "devices": []}}),
        ["CRT-5501"],
        1,
    ),
    "software-vulkan-only": (
        amd()
        + Machine(
            files={RADV: "{}", LVP: "{}"},
            children={"vulkan": {"loader": "libvulkan.so.1", "devices": [LLVMPIPE]}},
        ),
        ["CRT-5502", "CRT-5503"],
        1,
    ),
    "software-vulkan-without-a-card": (
        Machine(
            files={LVP: "{}"},
            children={"vulkan": {"loader": "libvulkan.so.1", "devices": [LLVMPIPE]}},
        ),
        ["CRT-5503"],
        0,
    ),
    "vulkan-driver-crashes": (
        Machine(files={RADV: "{}"}, children={"vulkan": SEGV}),
        ["CRT-5504"],
        1,
    ),
    "vulkan-variable-names-no-file": (
        Machine(environ={"VK_DRIVER_FILES": "/nowhere/icd.json"}),
        ["CRT-5505"],
        1,
    ),
    "read-only-cache": (Machine(read_only=("/home/ada",)), ["CRT-5601"], 1),
    "disk-full": (Machine(disk=(500 * 10**9, 10**6)), ["CRT-5602", "CRT-5602"], 1),
    "no-temporary-folder": (Machine(read_only=("/tmp",)), ["CRT-5603"], 1),
    "old-processor": (
        Machine(files={"/proc/cpuinfo": "model name : Old\nflags : sse2 avx"}),
        ["CRT-5010"],
        1,
    ),
    "limited-by-a-cgroup": (
        Machine(
            files={
                "/sys/fs/cgroup/user.slice/cpu.max": "150000 100000",
                "/sys/fs/cgroup/user.slice/memory.max": "8000000000",
            }
        ),
        ["CRT-5011"],
        1,
    ),
    "backend-unusable": (
        Machine(backends=(CPU, Status("x", "x", "1", "1.0", "unusable", "no card", "buy one"))),
        ["CRT-5701"],
        1,
    ),
    "no-nvidia-card": (
        Machine(backends=(CPU, Status("cuda", "cuda", "1", "1.0", "unusable", "no torch", "x"))),
        ["CRT-5704"],
        0,
    ),
    "no-vulkan-package": (
        Machine(backends=(CPU, Status("vulkan", "vulkan", "1", "1.0", "unusable", "no", "x"))),
        ["CRT-5704"],
        0,
    ),
    "only-a-software-device": (
        Machine(
            backends=(
                CPU,
                Status(
                    *("vulkan", "vulkan", "1", "1.0", "usable", ""),
                    devices=(DeviceInfo("llvmpipe", "llvmpipe", "cpu", 0, True),),
                ),
            )
        ),
        ["CRT-5703"],
        0,
    ),
    "only-a-processors-graphics": (Machine(backends=(CPU, INSIDE)), ["CRT-5703"], 0),
    "no-backend": (Machine(backends=()), [], 2),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_has_exactly_its_findings(name, tmp_path):
    machine, codes, exit_code = MACHINES[name]
    report = examine(machine.host(tmp_path))
    found = [f["code"] for f in report["findings"]]
    assert found == codes, report["findings"]
    assert report["exit_code"] == exit_code
    assert render(report)


def finding(machine, tmp_path, **settings):
    """Return the only finding of a machine."""
    (only,) = examine(machine.host(tmp_path), **settings)["findings"]
    return only


def test_a_closed_node_names_its_group_ours_and_the_command(tmp_path):
    found = finding(MACHINES["missing-group"][0], tmp_path)
    assert "/dev/kfd mode 0660: Permission denied" in found["evidence"]
    assert "/dev/dri/renderD128" in found["evidence"]
    assert "owner gid 105 (render); our gids: 1000" in found["evidence"]
    assert found["remedy"] == "sudo usermod -aG render $USER, then log out and in again"


def test_a_group_without_a_name_is_made_first(tmp_path):
    found = finding(MACHINES["group-without-a-name"][0], tmp_path)
    assert found["remedy"].startswith("sudo groupadd -g 993")


def test_a_wrong_override_names_both_architectures(tmp_path):
    found = finding(MACHINES["override-wrong"][0], tmp_path)
    assert (
        "HSA_OVERRIDE_GFX_VERSION=11.0.0 is gfx1100; 0000:03:00.0 is gfx1201" in found["evidence"]
    )


def test_a_visibility_list_names_the_card_that_it_hides(tmp_path):
    report = examine(MACHINES["visibility-hides-a-card"][0].host(tmp_path))
    assert "HIP_VISIBLE_DEVICES=1 leaves 1 of 2" in report["findings"][0]["evidence"]
    hidden = {g["id"]: g["hidden_by"] for g in report["gpus"]}
    assert hidden == {"0000:03:00.0": ["HIP_VISIBLE_DEVICES"], "0000:43:00.0": []}


def test_a_device_that_is_not_chosen_is_told_with_engine_reason_and_how_to_ask(tmp_path):
    machine = MACHINES["only-a-processors-graphics"][0]
    told = finding(machine, tmp_path)
    assert told["evidence"] == "rocm: hip:0 (Radeon 8060S): it is part of a processor"
    assert "--device hip:0" in told["remedy"]
    text = render(examine(machine.host(tmp_path / "again")))
    assert "device hip:0: Radeon 8060S, engine triton, only by name: it is part of" in text


def test_the_driver_that_crashes_is_named_and_the_others_are_not(tmp_path):
    found = finding(MACHINES["opencl-driver-crashes"][0], tmp_path)
    assert OTHER_ICD in found["evidence"] and "SIGSEGV" in found["evidence"]
    assert ICD not in found["evidence"]


def test_a_probe_that_hangs_is_told_as_timed_out_and_not_as_absent(tmp_path):
    found = finding(MACHINES["opencl-hangs"][0], tmp_path)
    assert "timed out after 30 s" in found["evidence"]


def test_a_card_that_three_apis_see_is_listed_once(tmp_path):
    machine = amd() + Machine(
        files={RADV: "{}"},
        children={
            "vulkan": {
                "loader": "libvulkan.so.1",
                "devices": [vulkan_device("discrete", "Radeon AI PRO R9700", "0000:03:00.0")],
            }
        },
    )
    (card,) = examine(machine.host(tmp_path))["gpus"]
    assert card["seen_by"] == ["pci", "kfd", "vulkan"]
    assert (card["arch"], card["kind"]) == ("gfx1201", "discrete")
    assert (card["memory_total"], card["memory_free"]) == (32 * GIB, 31 * GIB)


def test_limits_of_a_cgroup_are_read_with_both_numbers(tmp_path):
    found = finding(MACHINES["limited-by-a-cgroup"][0], tmp_path)
    assert "1.5 processors' time" in found["evidence"]
    assert "8.00 of 32.77 GB memory" in found["evidence"]


def test_the_first_cgroup_version_is_read_too(tmp_path):
    files = {
        "/proc/self/cgroup": "4:memory:/job/a\n1:cpu:/job",
        "/sys/fs/cgroup/memory/job/a/memory.limit_in_bytes": "9223372036854771712",
        "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4000000000",
        "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1",
        "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
    }
    report = examine(Machine(files=files).host(tmp_path))
    assert report["memory"]["limit"] == 4_000_000_000
    assert report["cpu"]["quota_cores"] is None


def test_there_are_no_findings_without_evidence_and_remedy(tmp_path):
    for i, (machine, _, _) in enumerate(MACHINES.values()):
        for f in examine(machine.host(tmp_path / str(i)))["findings"]:
            assert f["evidence"] and f["remedy"] and "{" not in f["remedy"], f


def test_the_base_machine_names_no_card():
    assert not any("pci" in path for path in BASE)
