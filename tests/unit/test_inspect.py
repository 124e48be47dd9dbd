"""`inspect` reads no weights and says what a drafter is, needs, and whether it fits."""

import json

import mlx.core as mx
import pytest

from dspark_mlx.convert import convert
from tests import packagings as pack
from tests.tools import FIXTURES, TARGET, VANILLA, copy, edit_config, run


@pytest.fixture
def unread(monkeypatch):
    """Weights out of reach: inspecting needs none, not even to judge a fit."""
    monkeypatch.setattr(mx, "load", None)
    monkeypatch.setattr(mx, "array", None)


def test_describes_without_reading_weights(capsys, unread):
    found = json.loads(run(capsys, "inspect", VANILLA, "--json").out)
    assert found["packaging"] == "DeepSpec native"
    assert found["config"]["target_layer_ids"] == [1, 2, 4, 5, 6]
    assert found["bytes"] > 500_000
    shown = run(capsys, "inspect", VANILLA).out
    assert "sees the whole block; rope 10000, halves" in shown and "float32" in shown
    assert "vanilla Markov head of rank 16, confidence head" in shown
    assert "layer_output 1, 2, 4" in shown


def test_shows_windows_precision_and_temperatures(capsys, tmp_path):
    config, tensors = pack.native()
    config |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9,
               "use_sliding_window": True,
               "confidence_temperatures": [1.0, 1.5, 2, 1, 1, 1, 1]}  # fmt: skip
    folder = pack.write(tmp_path / "d", config, tensors)
    convert(folder, tmp_path / "out", bits={"backbone": 4, "head": 8})
    shown = run(capsys, "inspect", tmp_path / "out").out
    assert "sees the whole block within 9 positions, sees the whole block" in shown
    assert "head 8 bits" in shown and "backbone 4 bits" in shown
    assert "confidence head with stored temperatures" in shown


def test_says_whether_it_fits(capsys, unread):
    done = run(capsys, "inspect", VANILLA, "--target", TARGET)
    assert done.code == 0 and "fits      yes" in done.out
    done = run(capsys, "inspect", VANILLA, "--target", FIXTURES / "target-gemma4")
    assert done.code == 1
    assert "number of target layers 6 in the target, 8 in the drafter" in done.out


def test_a_target_is_no_drafter_and_a_drafter_no_target(capsys, tmp_path):
    assert "not a drafter" in run(capsys, "inspect", TARGET).refusal()
    (tmp_path / "config.json").write_text("{}")
    line = run(capsys, "inspect", VANILLA, "--target", tmp_path).refusal()
    assert "no hidden_size" in line


# P05: the tokens have to be the same, the padding behind them need not


def padded(folder, rows):
    """The fixture drafter with so many rows in its tables."""
    config, tensors = pack.native()
    more = rows - config["vocab_size"]
    for name in [n for n in tensors if tensors[n].shape[0] == config["vocab_size"]]:
        table = tensors[name]
        tensors[name] = mx.pad(table, ((0, max(more, 0)), (0, 0)))[:rows]
    return pack.write(folder, config | {"vocab_size": rows}, tensors)


@pytest.mark.parametrize(("rows", "fits"), [(384, True), (312, True), (311, False)])
def test_padded_tails_fit_and_missing_tokens_do_not(capsys, tmp_path, rows, fits):
    """The target has 320 rows for 312 tokens."""
    done = run(capsys, "inspect", padded(tmp_path / "d", rows), "--target", TARGET)
    assert done.code == (0 if fits else 1)
    wrong = "vocabulary 320 in the target, 311 in the drafter (the tokenizer has 312 tokens)"
    assert (wrong in done.out) is not fits


def permuted(folder, swap=("a", "b")):
    """The target's tokenizer with two tokens swapped, beside a drafter."""
    content = json.loads((TARGET / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[swap[0]], vocabulary[swap[1]] = vocabulary[swap[1]], vocabulary[swap[0]]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_other_tokens_under_the_same_size_do_not_fit(capsys, tmp_path):
    drafter = permuted(copy(VANILLA, tmp_path / "d"))
    done = run(capsys, "inspect", drafter, "--target", TARGET)
    assert done.code == 1 and "is 'a' in the target, 'b' in the drafter, and 1 more" in done.out
    line = run(capsys, "generate", "--model", TARGET, "--drafter", drafter, "-p", "x").refusal()
    assert str(TARGET) in line and str(drafter) in line and "'a' in the target" in line
    line = run(capsys, "convert", drafter, "--target", TARGET, "-o", tmp_path / "o").refusal()
    assert "'a' in the target" in line
    assert not (tmp_path / "o").exists()


def test_a_converted_drafter_still_knows_its_tokens(capsys, tmp_path):
    """The tokenizer stays behind, a sample of its strings goes along."""
    convert(VANILLA, tmp_path / "out", target=TARGET)
    target = permuted(copy(TARGET, tmp_path / "target"), swap=("a", "z"))
    assert run(capsys, "inspect", tmp_path / "out", "--target", TARGET).code == 0
    done = run(capsys, "inspect", tmp_path / "out", "--target", target)
    assert done.code == 1 and "in the target" in done.out
    line = run(capsys, "generate", "--model", target, "--drafter", tmp_path / "out",
               "-p", "x").refusal()  # fmt: skip
    assert "do not fit" in line


def test_tails_that_only_one_tokenizer_has_are_no_disagreement(capsys, tmp_path):
    drafter = copy(VANILLA, tmp_path / "d")
    content = json.loads((TARGET / "tokenizer.json").read_text())
    content["added_tokens"].append({"id": 312, "content": "<more>"})
    (drafter / "tokenizer.json").write_text(json.dumps(content))
    assert run(capsys, "inspect", drafter, "--target", TARGET).code == 0
    (drafter / "tokenizer.json").write_text("[]")
    line = run(capsys, "inspect", drafter, "--target", TARGET).refusal()
    assert "no readable tokenizer" in line


def test_a_mask_token_needs_a_row_in_the_embedding_that_is_used(capsys, tmp_path):
    own = padded(tmp_path / "own", 384)
    edit_config(own, mask_token_id=350)
    assert run(capsys, "inspect", own, "--target", TARGET).code == 0
    line = run(capsys, "convert", own, "-o", tmp_path / "o", "--target", TARGET,
               "--share-embeddings").refusal()  # fmt: skip
    assert "mask token 350 has no row" in line
    config, tensors = pack.native("dflash-deepspec")
    config |= {"vocab_size": 384, "mask_token_id": 350}
    borrowed = pack.write(tmp_path / "b", *pack.zlab(config, tensors))
    done = run(capsys, "inspect", borrowed, "--target", TARGET)
    assert done.code == 1 and "mask token 350 beyond the target's embedding" in done.out
