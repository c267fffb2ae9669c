"""What the API tells without a backend: checkpoints and operations as data."""

from __future__ import annotations

import json
import shutil

import pytest

from clover_rt import builtin
from clover_rt.api import describe, load, operations
from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.ops import OPS
from tests.golden import GOLDEN

LINEAR, FULL = "linear_attention", "full_attention"
LAYERS = [LINEAR, FULL, LINEAR, FULL, FULL]


def test_the_built_in_model_is_described_by_its_card():
    facts = describe("clover-tiny")
    geometry = facts["geometry"]
    assert facts["model_type"] == "clover_moe"
    assert facts["modes"] == ["diffusion", "ar", "self-spec"]
    assert geometry["layer_types"] == LAYERS
    assert (geometry["hidden_size"], geometry["vocab_size"], geometry["context"]) == (
        128,
        1024,
        4096,
    )
    assert (geometry["experts"], geometry["experts_per_token"]) == (16, 2)
    assert facts["block"]["block_size"] == 32
    assert facts["block"]["mask_token"] == "<|mask|>"
    assert facts["stop_ids"][0] == {"id": 1020, "token": "<|im_end|>"}
    assert facts["tokenizer"]["chat_template"] is True
    assert facts == describe()
    json.dumps(facts)


def test_sizes_are_those_of_the_files():
    facts = describe("clover-tiny")
    (file,) = facts["weights"]["files"]
    size = (builtin.path() / "model.safetensors").stat().st_size
    assert file == {"name": "model.safetensors", "bytes": size}
    # what is not weights in the file is its header
    assert 0 < size - facts["weights"]["bytes"] < 20_000
    (bf16,) = facts["weights"]["types"].values()
    assert bf16["bytes"] == 2 * bf16["numbers"] == 2 * facts["weights"]["parameters"]


def test_memory_follows_from_the_geometry():
    memory = describe("clover-tiny")["memory"]
    # 3 attention layers x k and v x 2 KV heads of 32 x 4 bytes
    assert memory["kv_bytes_per_token"] == 3 * 2 * 2 * 32 * 4
    # 2 layers x (4 value heads of [32, 32] + 3 rows of 2 * 2 * 32 + 4 * 32 channels) x 4 bytes
    assert memory["state_bytes_per_sequence"] == 2 * (4 * 32 * 32 + 3 * 256) * 4


def test_a_causal_twin_runs_ar_only():
    facts = describe(GOLDEN / "qwen35moe_tiny")
    assert facts["modes"] == ["ar"]
    assert facts["block"] is None
    assert len(facts["weights"]["files"]) == 2


def test_a_tensor_that_does_not_fit_is_refused(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(builtin.path(), folder)
    config = json.loads((folder / "config.json").read_text())
    target = config.get("text_config", config)
    target["moe_intermediate_size"] = 32
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match="CRT-1162"):
        describe(folder)


def test_an_unknown_model_name_comes_with_the_list_and_the_nearest():
    with pytest.raises(BadInput, match="CRT-1014") as caught:
        load("clover-tny")
    assert "built-in models: clover-tiny" in caught.value.evidence
    assert "did you mean 'clover-tiny'?" in caught.value.fix


def test_an_empty_path_is_not_the_current_folder(monkeypatch):
    monkeypatch.chdir(builtin.path())
    with pytest.raises(BadInput, match="CRT-1014"):
        describe("")


def test_a_path_that_is_not_there_is_told_as_a_path(tmp_path):
    with pytest.raises(BadCheckpoint, match="CRT-1101"):
        load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("options", "code", "fix"),
    [
        ({"precision": "exakt"}, "CRT-1018", "did you mean 'exact'?"),
        ({"slots": 0}, "CRT-1019", "slots=2"),
        ({"backend": "cpi"}, "CRT-3001", "did you mean 'cpu'?"),
        ({"device": "cpu9"}, "CRT-3003", "id of one of these"),
        ({"context": 5000}, "CRT-1017", "at most 4096"),
        ({"context": 0}, "CRT-1017", "at most 4096"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_used_is_refused_with_the_remedy(options, code, fix):
    with pytest.raises(Exception, match=code) as caught:
        load(**options)
    assert fix in caught.value.fix


def test_every_operation_is_described_in_the_graphs_order():
    found = operations()
    assert [op["name"] for op in found] == list(OPS)
    json.dumps(found)
    (linear,) = operations("linear")
    shapes = {o["name"]: o["shape"] for o in linear["operands"]}
    assert (shapes["x"], shapes["w"], shapes["y"]) == (["T", "K"], ["N", "K"], ["T", "N"])
    assert all(t["why"] for t in linear["tolerances"].values())


def test_an_unknown_operation_comes_with_the_list_and_the_nearest():
    with pytest.raises(BadInput, match="CRT-1023") as caught:
        operations("expert_gem")
    assert "expert_gemm" in caught.value.evidence
    assert "did you mean 'expert_gemm'?" in caught.value.fix
