"""Loading: what fits, in which precision, shared with whom, and what is refused."""

import json
import os
import shutil

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3

from dspark_mlx import DSparkError, Pair, UserError, generate, load
from dspark_mlx.convert import convert
from dspark_mlx.errors import CheckpointError, OptionError, PairError

from ..tools import (
    FIXTURES,
    TARGET,
    VANILLA,
    behaviour,
    copy,
    edit_config,
    edit_tensors,
    identical,
    quantized_target,
)

PROMPT = "A small test."


def one_line(error):
    assert isinstance(error.value, UserError) and isinstance(error.value, DSparkError)
    return " ".join(str(error.value).split())


def unique_bytes(*modules):
    """Bytes of all arrays, each counted once."""
    arrays = {id(a): a for m in modules for _, a in tree_flatten(m.parameters())}
    return sum(a.nbytes for a in arrays.values())


def packed(module):
    kinds = (nn.QuantizedLinear, nn.QuantizedEmbedding)
    return {(m.bits, m.group_size) for _, m in module.named_modules() if isinstance(m, kinds)}


# what fits together


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hidden_size": 32}, ["hidden size 64 in the target, 32 in the drafter"]),
        ({"vocab_size": 300}, ["vocabulary 320 in the target, 300 in the drafter"]),
        ({"num_target_layers": 12}, ["number of target layers 8 in the target, 12 in the drafter"]),
        (
            {"num_target_layers": 12, "target_layer_ids": [1, 2, 4, 5, 9]},
            ["number of target layers 8", "tapped layer 9 of a target with 8 layers"],
        ),
        (
            {"vocab_size": 300, "hidden_size": 32, "num_target_layers": 12},
            ["hidden size", "vocabulary", "number of target layers"],
        ),
    ],
)
def test_pair_that_does_not_fit_is_refused_with_both_names_and_values(tmp_path, changes, expected):
    drafter = copy(VANILLA, tmp_path / "drafter", **changes)
    with pytest.raises(PairError) as error:
        load(TARGET, drafter)
    line = one_line(error)
    assert str(TARGET) in line and str(drafter) in line and "do not fit" in line
    assert all(words in line for words in expected)


def test_a_pair_built_by_hand_is_checked_too(tmp_path, pair_of):
    small = copy(TARGET, tmp_path / "small")
    edit_config(small, num_hidden_layers=6, layer_types=["full_attention"] * 6)
    weights = mx.load(str(small / "model.safetensors"))
    edit_tensors(small, **{k: None for k in weights if ".layers.6." in k or ".layers.7." in k})
    target, pair = load(small, False).target, pair_of("dspark-vanilla")
    with pytest.raises(PairError, match=r"8 in the drafter.*tapped layer 6 of a target with 6"):
        Pair(target, pair.drafter, pair.tokenizer)


def test_which_drafter(tmp_path):
    with pytest.raises(CheckpointError) as error:
        load(TARGET)
    line = one_line(error)
    assert "no drafter is known for" in line
    assert "drafter=" in line and "drafter=False" in line and "qwen3-4b" in line
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load(tmp_path)
    with pytest.raises(OptionError, match="drafter=True means nothing"):
        load(TARGET, True)
    with pytest.raises(CheckpointError, match="neither a folder nor a hub id"):
        load(TARGET, tmp_path / "absent")
    pair = load(TARGET, False)
    assert pair.drafter is None
    assert generate(pair, PROMPT, max_tokens=5).stats.proposed == 0


def test_source_form_loads_directly_and_behaves_like_the_converted_one(tmp_path):
    convert(FIXTURES / "dspark-vanilla-bin", tmp_path / "out")
    source, converted = (
        load(TARGET, FIXTURES / "dspark-vanilla-bin"),
        load(TARGET, tmp_path / "out"),
    )
    assert identical(behaviour(source.drafter), behaviour(converted.drafter))
    assert generate(source, PROMPT, max_tokens=30, cutoff="full").stats.proposed > 0


# precision


@pytest.mark.parametrize("value", [5, 0, "4", "all", True, False, 4.0, [4], -8])
def test_quantize_that_cannot_be(value):
    with pytest.raises(OptionError, match='quantize must be None, "keep", 4 or 8, not'):
        load(TARGET, VANILLA, quantize=value)


@pytest.mark.parametrize("value", ["int8", "Float32", 16, mx.float32, ""])
def test_dtype_that_cannot_be(value):
    with pytest.raises(OptionError, match="dtype must be one of float32, bfloat16, float16, not"):
        load(TARGET, VANILLA, dtype=value)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantize_packs_the_drafter_as_asked_and_leaves_the_target(tmp_path, bits):
    convert(VANILLA, tmp_path / "packed", bits=12 - bits, group_size=32)
    for drafter in (VANILLA, tmp_path / "packed"):  # stored in the other width: packed anew
        pair = load(TARGET, drafter, quantize=bits)
        assert packed(pair.drafter) == {(bits, 64)}
        assert packed(pair.target.model) == set()
        assert generate(pair, PROMPT, max_tokens=12, cutoff="full").stats.proposed > 0


def test_stored_quantization_is_undone_on_cpu_and_kept_on_request(tmp_path):
    target = quantized_target(tmp_path / "target")
    convert(VANILLA, tmp_path / "packed", bits=4)
    pair = load(target, tmp_path / "packed")
    if mx.default_device() == mx.cpu:
        assert packed(pair.target.model) == packed(pair.drafter) == set()
    kept = load(target, tmp_path / "packed", quantize="keep")
    assert (packed(kept.target.model), packed(kept.drafter)) == ({(8, 64)}, {(4, 64)})
    alone = generate(load(target, False, quantize="keep"), PROMPT, max_tokens=20)
    assert generate(kept, PROMPT, max_tokens=20).tokens == alone.tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_drafts(dtype):
    pair = load(TARGET, FIXTURES / "dspark-vanilla-bf16", dtype=dtype)
    for module in (pair.target.model, pair.drafter):
        found = {value.dtype for _, value in tree_flatten(module.parameters())}
        assert found == {getattr(mx, dtype)}
    stats = generate(pair, PROMPT, max_tokens=20, cutoff="full").stats
    assert stats.proposed > 0 and stats.accepted > 0


def test_values_that_are_not_finite_are_refused_also_after_a_cast(tmp_path):
    folder = copy(VANILLA, tmp_path / "drafter")
    edit_tensors(folder, norm__weight=mx.full((64,), 70000.0))
    load(TARGET, folder)
    with pytest.raises(CheckpointError, match=r"float16: NaN or infinite values in norm\.weight"):
        load(TARGET, folder, dtype="float16")
    edit_tensors(folder, hidden_norm__weight=mx.full((64,), float("nan")))
    with pytest.raises(CheckpointError, match=r"NaN or infinite values in hidden_norm\.weight"):
        load(TARGET, folder)


# sharing, and the target left alone


def test_shared_tables_exist_once(tmp_path):
    convert(VANILLA, tmp_path / "shared", target=TARGET)
    convert(VANILLA, tmp_path / "own")
    before = mx.get_active_memory()
    pair = load(TARGET, tmp_path / "shared")
    held = mx.get_active_memory() - before
    both = unique_bytes(pair.target.model, pair.drafter)
    whole = load(TARGET, tmp_path / "own")  # with copies of its own, which are equal
    assert both == unique_bytes(whole.target.model, whole.drafter)
    assert both == sum(
        value.nbytes
        for folder in (TARGET, tmp_path / "shared")
        for value in mx.load(str(folder / "model.safetensors")).values()
    )
    assert held <= 1.05 * both
    assert "embed_tokens" not in pair.drafter and "lm_head" not in pair.drafter
    ids, rows = mx.array([3, 99]), mx.random.normal((2, 64), key=mx.random.key(0))
    assert mx.array_equal(pair.drafter.embed(ids), pair.target.model.model.embed_tokens(ids))
    assert mx.array_equal(pair.drafter.logits(rows), pair.target.model.lm_head(rows))


def test_tapping_leaves_mlx_lm_s_model_as_it_was():
    alone = load(TARGET, False)
    model = alone.target.model
    layers, inner = list(model.layers), model.model
    drafter = load(TARGET, VANILLA).drafter
    pair = Pair(alone.target, drafter, alone.tokenizer, None, alone.stop_ids)
    generate(pair, PROMPT, max_tokens=12)
    assert pair.target.model is model and model.model is inner and type(model) is qwen3.Model
    assert all(a is b for a, b in zip(model.layers, layers, strict=True))
    assert {type(layer) for layer in model.layers} == {qwen3.TransformerBlock}


# configs and tokenizers in the forms that are met


def test_stop_ids_come_from_config_generation_config_and_tokenizer(tmp_path):
    assert load(TARGET, False).stop_ids == {2, 4}
    folder = copy(TARGET, tmp_path / "target", eos_token_id=[7, 8])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert {7, 8, 9} <= load(folder, False).stop_ids
    (folder / "generation_config.json").unlink()
    edit_config(folder, eos_token_id=None)
    assert load(folder, False).stop_ids == {2}


def test_nested_rope_settings_mean_what_flat_ones_mean(tmp_path):
    def logits(name, **config):
        folder = copy(TARGET, tmp_path / name, **config)
        pair = load(folder, False)
        return pair.target.model(mx.arange(5, 45)[None])

    nested = {"rope_theta": 321.0, "rope_type": "default"}
    ours = logits("nested", rope_parameters=nested)
    assert mx.array_equal(ours, logits("flat", rope_parameters=None, rope_theta=321.0))
    assert not mx.array_equal(ours, load(TARGET, False).target.model(mx.arange(5, 45)[None]))


BROKEN = {
    "tokenizer.json": [None, b"", b"{}", b"\xff"],
    "generation_config.json": [b"{", b"[]", b'{"eos_token_id": "x"}', b'{"eos_token_id": {}}'],
    "config.json": [None, b"", b"[]", b"{}", b'{"model_type": "qwen3"}', b'{"model_type": "gpt9"}'],
    "model.safetensors": [None, b"", b"\x05" * 500],
}


@pytest.mark.parametrize(
    ("file", "content"), [(name, content) for name, all_ in BROKEN.items() for content in all_]
)
def test_target_folder_with_a_broken_file_is_one_line(tmp_path, file, content):
    folder = shutil.copytree(TARGET, tmp_path / "target")
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    with pytest.raises(UserError) as error:
        load(folder, False)
    assert str(folder) in one_line(error) and len(one_line(error)) < 600


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 32},
        {"hidden_size": "x"},
        {"num_hidden_layers": 9},
        {"num_attention_heads": 0},
        {"vocab_size": -1},
        {"head_dim": 10**12},
        {"eos_token_id": "x"},
        {"max_position_embeddings": "x"},
        {"model_file": "evil.py"},
        {"quantization": 4},
    ],
)
def test_target_config_that_cannot_be_is_one_line(tmp_path, changes):
    folder = copy(TARGET, tmp_path / "target", **changes)
    (folder / "evil.py").write_text("raise SystemExit('executed')")
    with pytest.raises(UserError) as error:
        generate(load(folder, False), PROMPT, max_tokens=3)
    assert len(one_line(error)) < 600


def test_truncated_target_is_refused(tmp_path):
    folder = copy(TARGET, tmp_path / "target")
    os.truncate(folder / "model.safetensors", 700_000)
    with pytest.raises(CheckpointError, match="cannot be loaded as a target"):
        load(folder, False)


def test_a_drafter_given_as_target_and_the_reverse():
    with pytest.raises(CheckpointError, match="cannot be loaded as a target"):
        load(VANILLA, False)
    with pytest.raises(CheckpointError, match="not a drafter of a known packaging"):
        load(TARGET, TARGET)
