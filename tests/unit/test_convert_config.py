"""Configs that cannot be: each key and value is named, before anything large is made."""

import json

import pytest

from dspark_mlx.convert import convert

from ..tools import TARGET, VANILLA, Case, copy, run

REQUIRED = (
    "block_size target_layer_ids mask_token_id num_target_layers hidden_size intermediate_size "
    "num_hidden_layers num_attention_heads num_key_value_heads rms_norm_eps vocab_size"
).split()


@pytest.fixture
def case(tmp_path, capsys):
    return Case(tmp_path, capsys)


def test_folder_without_config(case):
    copy(VANILLA, case.source)
    (case.source / "config.json").unlink()
    assert "has no config.json (found: model.safetensors)" in case.refused()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1]", "holds a list, expected a JSON object"),
        (b"null", "holds a NoneType, expected a JSON object"),
        (b"{}", "not a drafter of a known packaging"),
    ],
)
def test_config_that_is_no_json_object(case, content, expected):
    copy(VANILLA, case.source)
    (case.source / "config.json").write_bytes(content)
    assert expected in case.refused()


@pytest.mark.parametrize("key", REQUIRED)
def test_every_required_key_is_asked_for_by_name(case, key):
    copy(VANILLA, case.source, **{key: None})
    line = case.refused()
    assert f"missing {key}" in line and "config.json" in line


def test_rope_theta_is_never_guessed(case):
    copy(VANILLA, case.source, rope_parameters=None)
    assert "rope_theta is None, expected a positive number" in case.refused()


WRONG = [
    ("target_layer_ids", [1, 2, 4, 5, 7], "[1, 2, 4, 5, 7] reach the final layer of a target"),
    ("target_layer_ids", [1, 2, 4, 5, 99], "reach the final layer"),
    ("target_layer_ids", [2, 1, 4, 5, 6], "strictly increasing"),
    ("target_layer_ids", [1, 1, 4, 5, 6], "strictly increasing"),
    ("target_layer_ids", [-9, 2, 4, 5, 6], "integers from -1 on"),
    ("target_layer_ids", [], "is [], expected a list of integers"),
    ("target_layer_ids", [True, 2, 4, 5, 6], "expected a list of integers"),
    ("target_layer_ids", ["1", 2, 4, 5, 6], "expected a list of integers"),
    ("target_layer_ids", [1.0, 2, 4, 5, 6], "expected a list of integers"),
    ("target_layer_ids", "1,2", "is '1,2', expected a list of integers"),
    ("target_layer_ids", 5, "is 5, expected a list of integers"),
    ("block_size", True, "block_size is True, expected an integer"),
    ("block_size", "7", "block_size is '7', expected an integer"),
    ("block_size", 7.0, "block_size is 7.0, expected an integer"),
    ("block_size", 0, "block_size is 0, expected an integer"),
    ("hidden_size", -64, "hidden_size is -64"),
    ("hidden_size", 10**12, "hidden_size is 1000000000000"),
    ("hidden_size", 2**28, "too large"),
    ("vocab_size", 2**28, "embed_tokens.weight has shape [320, 64], expected [268435456, 64]"),
    ("intermediate_size", 10**30, "intermediate_size is"),
    ("num_hidden_layers", 10**6, "more than the 1024 that make sense"),
    ("num_attention_heads", 0, "num_attention_heads is 0"),
    ("num_attention_heads", 2**28, "too large"),
    ("num_key_value_heads", 3, "4 attention heads cannot be shared by 3 key/value heads"),
    ("head_dim", 0, "head_dim is 0"),
    ("head_dim", "16", "head_dim is '16'"),
    ("mask_token_id", 320, "mask_token_id 320 is outside the vocabulary of 320"),
    ("mask_token_id", -1, "mask_token_id is -1"),
    ("mask_token_id", True, "mask_token_id is True"),
    ("rms_norm_eps", "small", "rms_norm_eps is 'small'"),
    ("rms_norm_eps", float("nan"), "rms_norm_eps is nan"),
    ("rope_parameters", {"rope_theta": float("inf")}, "rope_theta is inf"),
    ("rope_parameters", [1], "rope_theta is None"),
    ("markov_rank", -16, "markov_rank is -16"),
    ("markov_rank", 8, "markov_w1.weight has shape [320, 16], expected [320, 8]"),
    ("markov_rank", 0, "markov_rank is 0, but the file holds a Markov head"),
    ("markov_head_type", "quantum", "sequential head 'quantum' is not supported"),
    ("markov_head_type", ["vanilla"], "markov head type is ['vanilla'], expected a name"),
    ("enable_confidence_head", "false", "is 'false', expected true or false"),
    ("confidence_temperatures", [1.0, 0.0], "expected positive numbers"),
    ("hidden_act", "gelu", "hidden_act 'gelu' is not supported yet"),
    ("attention_bias", True, "attention_bias True is not supported yet"),
    ("sample_from_anchor", "no", "sample_from_anchor is 'no', expected true or false"),
    ("log_snr_conditioning", True, "log-SNR conditioning is not supported yet"),
    ("layer_types", ["sliding_attention"], "layer_types has 1 entries for 2 layers"),
    ("layer_types", ["linear_attention"] * 2, "full_attention and sliding_attention are"),
    ("architectures", ["Qwen3Eagle3Model"], "missing ttt_length"),
    ("architectures", ["Qwen3ForCausalLM"], "not a drafter of a known packaging"),
    ("architectures", ["DFlashDraftModel"], "markov_rank is 16 in a DFlashDraftModel config"),
    ("architectures", ["A", "B"], "not a drafter of a known packaging"),
    ("architectures", [["Qwen3DSparkModel"]], "not a drafter of a known packaging"),
    ("architectures", {"a": 1}, "not a drafter of a known packaging"),
    ("dflash_config", {"block_size": 16}, "block_size is 7, but dflash_config.block_size is 16"),
    ("dflash_config", {"causal": True, "use_swa": True}, "use_swa is true, layer_types say other"),
    ("eagle_aux_hidden_state_layer_ids", [1, 2, 4, 5, 6], "expected [2, 3, 5, 6, 7] beside"),
    ("attention_sink_bias", True, "attention_sink_bias is true, but the file holds no tensors"),
    ("has_embed_tokens", False, "has_embed_tokens is false, but the file holds the tensors"),
]


@pytest.mark.parametrize(("key", "value", "expected"), WRONG)
def test_config_value_that_cannot_be_is_named_with_its_value(case, key, value, expected):
    copy(VANILLA, case.source, **{key: value})
    line = case.refused()
    assert expected in line and (str(case.source) in line or "sequential head" in line)


def test_long_values_are_quoted_in_part(case):
    copy(VANILLA, case.source, architectures=["x" * 100_000])
    assert len(case.refused()) < 500


EDITED = [
    ({"format_version": 2}, "format_version 2 found, this version reads 1"),
    ({"format_version": None}, "format_version None found"),
    ({"surprise": 1}, "unknown surprise"),
    ({"rope": None}, "missing rope"),
    ({"rope": {"theta": 1.0, "yarn": 2}}, "rope: unknown yarn"),
    ({"rope": {"interleaved": True}}, "rope: missing theta"),
    ({"rope": 10000.0}, "rope is 10000.0, expected an object"),
    ({"target_layer_ids": "abc"}, "target_layer_ids is 'abc'"),
    ({"markov": {"type": "vanilla", "rank": "x"}}, "markov rank is 'x'"),
    ({"confidence": {"with_markov": 1}}, "with_markov is 1"),
    ({"embeddings": "theirs"}, "embeddings is 'theirs', known: own, target"),
    ({"block_mask": "causal"}, "unknown block_mask"),
    ({"tap_convention": "layer_input"}, "tap_convention is 'layer_input'"),
    ({"predict_from_slot": 7}, "predict_from_slot is 7"),
    ({"rope": {"theta": 1e4, "interleaved": "x"}}, "rope.interleaved is 'x'"),
    ({"kind": ["dspark"]}, "kind is ['dspark'], expected a name"),
    ({"kind": "oracle"}, "a oracle drafter of qwen3 form is not supported yet"),
    ({"quantization": {"bits": 4}}, "expected group_size and modules"),
    ({"quantization": {"group_size": 7, "modules": {}}}, "group_size is 7"),
    ({"quantization": {"group_size": 64, "modules": {"fc": "4"}}}, "module paths to bits"),
    ({"quantization": {"group_size": 128, "modules": {"fc": 4}}}, "quantization does not fit"),
    ({"quantization": {"group_size": 64, "modules": {"norm": 4}}}, "quantization names ['norm']"),
    ({"quantization": {"group_size": 64, "modules": {"fc": 4}}}, "fc.scales"),
    ({"source": "me"}, "source is 'me', expected an object"),
]


@pytest.mark.parametrize(("changes", "expected"), EDITED)
def test_converted_config_edited_by_hand_is_refused_by_name(tmp_path, capsys, changes, expected):
    convert(VANILLA, tmp_path / "out")
    path = tmp_path / "out/config.json"
    config = json.loads(path.read_text()) | changes
    if changes == {"rope": None} or changes == {"format_version": None}:
        config.pop(*changes)
    path.write_text(json.dumps(config))
    argv = ["--model", TARGET, "--drafter", tmp_path / "out", "-p", "x"]
    assert expected in run(capsys, "generate", *argv).refusal()
