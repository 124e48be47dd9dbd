"""Conversion that succeeds: what is written, what reads back, what is left out or packed."""

import hashlib
import json
from importlib.metadata import version

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from dspark_mlx import __version__, generate, load
from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.config import DrafterConfig
from dspark_mlx.convert import convert
from dspark_mlx.drafters.packing import quantize_drafter
from dspark_mlx.drafters.weights import load_drafter
from dspark_mlx.errors import OptionError

from ..tools import (
    FIXTURES,
    TARGET,
    VANILLA,
    behaviour,
    copy,
    edit_tensors,
    identical,
    quantized_target,
    run,
)

PACKAGINGS = ["-vanilla", "-vanilla-sharded", "-vanilla-bin", "-vanilla-bf16", "-noconf"]
PACKAGINGS = [f"dspark{name}" for name in (*PACKAGINGS, "-conf-nomarkov")]
PROMPT = "A small test."


def written(folder):
    return json.loads((folder / "config.json").read_text())


def quantized_layers(drafter):
    """Path -> (bits, group size) of every module that holds packed weights."""
    kinds = (nn.QuantizedLinear, nn.QuantizedEmbedding)
    return {p: (m.bits, m.group_size) for p, m in drafter.named_modules() if isinstance(m, kinds)}


def beside(target):
    """Arguments for a target whose self-test is shown elsewhere."""
    return ("--target", target, "--no-selftest")


def tables(pair):
    """Which of the two large tables a loaded drafter has of its own."""
    return {name for name in ("embed_tokens", "lm_head") if name in pair.drafter}


@pytest.fixture(scope="module")
def plain():
    return generate(load(TARGET, False), PROMPT, max_tokens=40).tokens


@pytest.mark.parametrize("name", PACKAGINGS)
def test_converted_folder_drafts_exactly_like_its_source(tmp_path, capsys, name):
    outcome = run(capsys, "convert", FIXTURES / name, "-o", tmp_path / "out")
    assert (outcome.code, outcome.err) == (0, "")
    assert "read back and equal" in outcome.out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "config.json",
        "conversion.json",
        "model.safetensors",
    ]
    for dtype in (None, "bfloat16"):
        source = load(TARGET, FIXTURES / name, dtype=dtype)
        converted = load(TARGET, tmp_path / "out", dtype=dtype)
        assert identical(behaviour(converted.drafter), behaviour(source.drafter))


def test_all_packagings_of_one_checkpoint_convert_to_the_same_bytes(tmp_path):
    for name in ("", "-sharded", "-bin"):
        convert(FIXTURES / f"dspark-vanilla{name}", tmp_path / f"out{name}")
    one, *others = [p.read_bytes() for p in sorted(tmp_path.glob("*/model.safetensors"))]
    assert others == [one, one]


def test_equal_copies_are_dropped_and_named(tmp_path, capsys, plain):
    outcome = run(capsys, "convert", VANILLA, "-o", tmp_path / "out", *beside(TARGET))
    assert outcome.code == 0
    for name in ("embed_tokens.weight", "lm_head.weight"):
        assert f"dropped  {name}: equal to the target's" in outcome.out
    config = written(tmp_path / "out")
    assert (config["embeddings"], config["head"]) == ("target", "target")
    assert not any("embed" in k or "lm_head" in k for k in mx.load(
        str(tmp_path / "out/model.safetensors")
    ))  # fmt: skip
    source, converted = load(TARGET, VANILLA), load(TARGET, tmp_path / "out")
    assert (tables(source), tables(converted)) == ({"embed_tokens", "lm_head"}, set())
    assert identical(behaviour(converted.drafter), behaviour(source.drafter))
    assert generate(converted, PROMPT, max_tokens=40).tokens == plain


def test_copies_stored_in_a_narrower_dtype_are_kept_when_values_differ(tmp_path):
    # bfloat16 roundings of a float32 table are other values; dropping them changes the drafts
    result = convert(FIXTURES / "dspark-vanilla-bf16", tmp_path / "out", target=TARGET)
    assert result.dropped == {}


def test_only_the_table_that_differs_is_kept(tmp_path, capsys):
    target = copy(TARGET, tmp_path / "target")
    rows = mx.load(str(target / "model.safetensors"))["model.embed_tokens.weight"]
    edit_tensors(target, model__embed_tokens__weight=rows + mx.where(rows == rows[0, 0], 1e-3, 0))
    outcome = run(capsys, "convert", VANILLA, "-o", tmp_path / "out", *beside(target))
    assert outcome.out.count("dropped") == 1 and "dropped  lm_head.weight" in outcome.out
    assert tables(load(target, tmp_path / "out")) == {"embed_tokens"}
    source, converted = load(target, VANILLA), load(target, tmp_path / "out")
    assert identical(behaviour(converted.drafter), behaviour(source.drafter))


def test_quantized_target_keeps_the_copies_unless_sharing_is_asked_for(tmp_path, capsys):
    target = quantized_target(tmp_path / "target", bits=4)
    argv = ["convert", VANILLA, *beside(target), "-o"]
    assert "dropped" not in run(capsys, *argv, tmp_path / "kept").out
    assert tables(load(target, tmp_path / "kept")) == {"embed_tokens", "lm_head"}
    outcome = run(capsys, *argv, tmp_path / "shared", "--share-embeddings")
    assert outcome.out.count("the target's is used, though it differs") == 2
    for quantize in (None, "keep"):
        pair = load(target, tmp_path / "shared", quantize=quantize)
        assert tables(pair) == set()
        ids = mx.array([5, 200, 319])
        assert mx.array_equal(pair.drafter.embed(ids), pair.target.embed(ids))
        alone = generate(load(target, False, quantize=quantize), PROMPT, max_tokens=24)
        assert generate(pair, PROMPT, max_tokens=24).tokens == alone.tokens


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (8, 128)])
def test_quantized_as_asked_and_read_back_to_the_bit(tmp_path, capsys, plain, bits, group):
    out = tmp_path / "out"
    argv = ["-q", "--q-bits", bits, "--q-group-size", group]
    outcome = run(capsys, "convert", VANILLA, "-o", out, *argv)
    assert outcome.code == 0
    kept = load(TARGET, out, quantize="keep")
    layers = quantized_layers(kept.drafter)
    assert set(layers.values()) == {(bits, group)}
    assert f"packed   {len(layers)} matrices to {bits} bits, group {group}" in outcome.out

    memory = load_drafter(open_drafter(VANILLA))
    quantize_drafter(memory, bits, group)
    ours, theirs = (dict(tree_flatten(d.parameters())) for d in (kept.drafter, memory))
    assert ours.keys() == theirs.keys()
    assert all(mx.array_equal(ours[name], theirs[name]) for name in ours)
    assert identical(behaviour(kept.drafter), behaviour(memory))

    for pair in (kept, load(TARGET, out)):
        assert generate(pair, PROMPT, max_tokens=40).tokens == plain


def test_default_is_8_bits_in_groups_of_64(tmp_path):
    assert run_q(tmp_path, "-q") == {(8, 64)}
    assert run_q(tmp_path, "-q", "--q-bits", "4") == {(4, 64)}
    assert run_q(tmp_path) == set()


def run_q(tmp_path, *argv):
    from dspark_mlx import cli

    assert cli.main(["convert", str(VANILLA), "-o", str(tmp_path / "o"), "--overwrite", *argv]) == 0
    return set(quantized_layers(load(TARGET, tmp_path / "o", quantize="keep").drafter).values())


def test_matrices_whose_width_does_not_divide_stay_dense_and_are_reported(tmp_path, capsys):
    outcome = run(capsys, "convert", VANILLA, "-o", tmp_path / "out", "-q")
    dense = next(line for line in outcome.out.splitlines() if line.startswith("dense"))
    assert dense.split(maxsplit=1)[1].split(", ") == [
        "confidence_head.proj.weight",
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
    ]
    assert not any(
        "markov" in path for path in written(tmp_path / "out")["quantization"]["modules"]
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_is_that_of_every_tensor(tmp_path, dtype):
    result = convert(VANILLA, tmp_path / "out", dtype=dtype)
    found = mx.load(str(tmp_path / "out/model.safetensors"))
    assert {value.dtype for value in found.values()} == {getattr(mx, dtype)}
    assert result.config.dtype == written(tmp_path / "out")["dtype"] == dtype
    assert len(generate(load(TARGET, tmp_path / "out"), PROMPT, max_tokens=9).tokens) <= 9


def test_config_states_every_key_and_survives_the_round_trip(tmp_path):
    result = convert(VANILLA, tmp_path / "out", bits=4, group_size=32)
    config = written(tmp_path / "out")
    fields = set(DrafterConfig.__dataclass_fields__)
    assert set(config) == fields | {"format", "format_version"}
    assert DrafterConfig.from_dict(config) == result.config
    assert DrafterConfig.from_dict(result.config.to_dict()) == result.config
    assert config["target_layer_ids"] == [1, 2, 4, 5, 6]
    assert config["rope"] == {
        "theta": 10000.0,
        "interleaved": False,
        "partial": 1.0,
        "scaling": None,
        "rotary_dims": None,
    }


def test_provenance_names_files_and_versions_but_no_local_path(tmp_path, monkeypatch):
    source = FIXTURES / "dspark-vanilla-sharded"
    convert(source, tmp_path / "out")
    record = written(tmp_path / "out")["source"]
    assert (record["name"], record["packaging"]) == (source.name, "DeepSpec native")
    assert record["sha256"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in [source / "config.json", *source.glob("*.safetensors")]
    }
    assert record["versions"] == {
        "dspark-mlx": __version__,
        "mlx": version("mlx"),
        "mlx-lm": version("mlx-lm"),
    }
    text = (tmp_path / "out/config.json").read_text()
    assert str(source.parent) not in text and str(tmp_path) not in text
    monkeypatch.chdir(source)  # a source named "." has a name all the same
    convert(".", tmp_path / "dot")
    assert written(tmp_path / "dot")["source"]["name"] == source.name


def test_overwrite_replaces_the_old_folder_whole(tmp_path, capsys):
    out = tmp_path / "out"
    run(capsys, "convert", FIXTURES / "dspark-noconf", "-o", out)
    (out / "notes.txt").write_text("mine")
    line = run(capsys, "convert", VANILLA, "-o", out).refusal()
    assert "not empty" in line and "--overwrite" in line
    assert written(out)["confidence"] is None and (out / "notes.txt").exists()
    assert run(capsys, "convert", VANILLA, "-o", out, "--overwrite").code == 0
    assert written(out)["confidence"] and not (out / "notes.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for place in ("empty", "a/b/c"):
        assert run(capsys, "convert", VANILLA, "-o", tmp_path / place).code == 0
        assert written(tmp_path / place)["format"] == "dspark-mlx"


def test_folder_inside_the_source_leaves_the_source_alone(tmp_path, capsys):
    source = copy(VANILLA, tmp_path / "source")
    before = {p.name: p.read_bytes() for p in source.iterdir()}
    assert run(capsys, "convert", source, "-o", source / "mlx").code == 0
    assert {p.name: p.read_bytes() for p in source.iterdir() if p.is_file()} == before
    assert run(capsys, "convert", source, "-o", source / "mlx", "--overwrite").code == 0


def test_library_refuses_what_the_parser_would():
    with pytest.raises(OptionError, match="4 or 8 bits, not 5"):
        convert(VANILLA, "/nowhere/out", bits=5)
    with pytest.raises(OptionError, match="float32, bfloat16, float16, not 'int8'"):
        convert(VANILLA, "/nowhere/out", dtype="int8")
    with pytest.raises(OptionError, match="32, 64 or 128, not 48"):
        convert(VANILLA, "/nowhere/out", bits=4, group_size=48)
