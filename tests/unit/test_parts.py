"""Parts of a drafter: their bits and what these cost; tables, ranges and details that matter."""

import dataclasses
import json

import mlx.core as mx
import mlx.nn as nn
import pytest

from dspark_mlx import generate, load
from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.config import RopeConfig
from dspark_mlx.convert import convert, selftest
from dspark_mlx.drafters.packing import bits_by_part, part_of
from dspark_mlx.drafters.weights import load_drafter
from dspark_mlx.errors import CheckpointError, OptionError
from dspark_mlx.stats import Stats
from dspark_mlx.summary import summary

from .. import packagings as pack
from ..tools import FIXTURES, TARGET, VANILLA, behaviour, edit_config, identical, run

ARGV = ["-q", "--q-group-size", 32]


def found_bits(folder):
    """Part -> bits of its packed modules, by the modules themselves."""
    drafter = load(TARGET, folder, quantize="keep").drafter
    kinds = (nn.QuantizedLinear, nn.QuantizedEmbedding)
    packed = {p: m.bits for p, m in drafter.named_modules() if isinstance(m, kinds)}
    parts = {part: {b for p, b in packed.items() if part_of(p) == part} for part in map(
        part_of, packed)}  # fmt: skip
    assert all(len(bits) == 1 for bits in parts.values())
    return {part: bits.pop() for part, bits in parts.items()}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A drafter whose Markov tables are wide enough to be packed."""
    config, tensors = pack.native()
    for name in ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"):
        table = tensors[name]
        tensors[name] = mx.concatenate([table, mx.zeros_like(table)], axis=-1)
    confidence = tensors["confidence_head.proj.weight"]
    zeros = mx.zeros((1, 16))
    tensors["confidence_head.proj.weight"] = mx.concatenate([confidence, zeros], axis=-1)
    return pack.write(tmp_path_factory.mktemp("wide"), config | {"markov_rank": 32}, tensors)


@pytest.mark.parametrize(
    ("argv", "expected", "shown"),
    [
        ([], dict.fromkeys(("backbone", "head", "markov", "embeddings"), 8), "matrices to 8 bits"),
        (["--q-bits", "4", "--q-head-bits", "8", "--q-markov-bits", "8"],
         {"backbone": 4, "head": 8, "markov": 8, "embeddings": 4},
         "to 4 bits (embeddings, backbone), 8 bits (head, markov)"),
        (["--q-head-bits", "4", "--q-embeddings-bits", "dense", "--q-markov-bits", "dense"],
         {"backbone": 8, "head": 4}, "4 bits (head)"),
    ],
)  # fmt: skip
def test_each_part_has_its_bits(capsys, tmp_path, wide, argv, expected, shown):
    done = run(capsys, "convert", wide, "-o", tmp_path / "out", *ARGV, *argv)
    assert done.code == 0 and "packed" in done.out
    words = shown.split("(")[0]
    assert words in done.out, done.out
    assert found_bits(tmp_path / "out") == expected
    config = json.loads((tmp_path / "out/config.json").read_text())
    stated = {part_of(p): b for p, b in config["quantization"]["modules"].items()}
    assert stated == expected
    plain = generate(load(TARGET, False), "hello", max_tokens=12).tokens
    assert generate(load(TARGET, tmp_path / "out"), "hello", max_tokens=12).tokens == plain


def test_loss_by_part_is_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(selftest, "ANSWERS", 2)
    argv = ["--target", TARGET, "--q-bits", "4", "--draft-vocab", "120"]
    done = run(capsys, "convert", VANILLA, "-o", tmp_path / "out", *ARGV, *argv)
    assert "by converting (vocabulary alone " in done.out and "backbone alone " in done.out
    report = json.loads((tmp_path / "out/conversion.json").read_text())
    assert set(report["selftest_parts"]) == {"vocabulary", "backbone"}
    assert all(1 < value <= 8 for value in report["selftest_parts"].values())


def test_a_part_that_stays_dense_is_the_sources(tmp_path):
    convert(VANILLA, tmp_path / "out", bits={"backbone": None, "head": None}, group_size=32)
    assert identical(behaviour(load(TARGET, tmp_path / "out").drafter),
                     behaviour(load(TARGET, VANILLA).drafter))  # fmt: skip


def test_what_cannot_be_asked_for(capsys):
    assert bits_by_part(None) == {} and bits_by_part({"head": 4, "markov": None}) == {"head": 4}
    for wrong, words in (({"tail": 4}, "no part tail"), ({"head": 5}, r"not 5 \(head\)"),
                         (True, "not True"), ({"markov": 16}, "markov")):  # fmt: skip
        with pytest.raises(OptionError, match=words):
            bits_by_part(wrong)
    refused = {
        "need -q": ["--q-head-bits", "8"],
        "invalid choice: '6'": ["-q", "--q-head-bits", "6"],
        "invalid choice: 5": ["-q", "--q-bits", "5"],
    }
    for words, argv in refused.items():
        assert words in run(capsys, "convert", VANILLA, "-o", "/nowhere/o", *argv).refusal()


def test_a_config_that_names_a_matrix_which_is_not_there(tmp_path, capsys):
    convert(VANILLA, tmp_path / "out", bits=4, group_size=32)
    config = json.loads((tmp_path / "out/config.json").read_text())
    packing = config["quantization"]
    packing["modules"]["layers.0.norm"] = 4
    edit_config(tmp_path / "out", quantization=packing)
    line = run(capsys, "generate", "--model", TARGET, "--drafter", tmp_path / "out",
               "-p", "x").refusal()  # fmt: skip
    assert "layers.0.norm" in line


def test_equal_tables_are_kept_once(tmp_path):
    """A source that ships copies of the target's tables shares the target's arrays (P60)."""
    pair = load(TARGET, VANILLA)
    family, model = pair.target.family, pair.target.model
    assert pair.drafter.embed_tokens.weight is family.embedding(model).weight
    assert pair.drafter.lm_head.weight is family.head(model).weight
    other = load(TARGET, FIXTURES / "dspark-vanilla-bf16")  # rounded: other values
    assert other.drafter.lm_head.weight is not other.target.family.head(other.target.model).weight


def test_stored_temperatures_are_carried(tmp_path):
    config, tensors = pack.native()
    stored = [1.0, 0.8, 1.25, 2, 1, 1, 1]
    config |= {"confidence_temperatures": stored}
    folder = pack.write(tmp_path / "d", config, tensors)
    convert(folder, tmp_path / "out")
    for place in (folder, tmp_path / "out"):
        assert load(TARGET, place).drafter.config.confidence_temperatures == tuple(stored)


def test_hidden_states_that_overflow_float16_are_refused(tmp_path):
    """P54: the drafts would be NaN, all of them rejected, and the text right as ever."""
    config, tensors = pack.native()
    tensors["fc.weight"] = tensors["fc.weight"] * 1e4
    folder = pack.write(tmp_path / "d", config, tensors)
    assert load(TARGET, folder).drafter.dtype == mx.float32
    with pytest.raises(CheckpointError, match=r"overflow float16; load it as bfloat16 or float32"):
        load(TARGET, folder, dtype="float16")
    assert load(TARGET, folder, dtype="bfloat16").drafter.dtype == mx.bfloat16


@pytest.mark.parametrize(
    "change", [{"embedding_scale": 1.0}, {"logit_softcap": None}, {"rope": None}, "scale", "scalar"]
)
def test_every_gemma4_detail_matters(change):
    """P53: what the parity tests hold in place moves the logits when it is left out."""
    source = open_drafter(FIXTURES / "dspark-gemma4")
    with source.tensors:
        right = load_drafter(source)
        if isinstance(change, dict):
            config = dataclasses.replace(source.config, **change | (
                {"rope": RopeConfig(source.config.rope.theta)} if "rope" in change else {}
            ))  # fmt: skip
            other = load_drafter(dataclasses.replace(source, config=config))
        else:
            other = load_drafter(source)
    for layer in other.layers if isinstance(change, str) else ():
        if change == "scale":
            layer.self_attn.scale = source.config.head_dim**-0.5
        else:
            layer.layer_scalar = mx.ones((1,))
    ours, theirs = behaviour(right)[0], behaviour(other)[0]
    assert mx.abs(ours - theirs).max().item() > 1e-3


def test_a_drafter_that_is_never_right_is_pointed_out():
    """P59: after 20 rounds with under a tenth of first drafts accepted."""
    stats = Stats(rounds=30, proposed=200, committed=31, accepted_at=[1, 0], judged_at=[30, 30])
    assert "hardly any draft is accepted" in summary(stats, "length")
    stats.accepted_at = [3, 0]
    assert "hardly any" not in summary(stats, "length")
    stats.accepted_at, stats.judged_at = [0, 0], [19, 19]
    assert "hardly any" not in summary(stats, "length")
