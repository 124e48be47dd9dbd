"""A reduced draft vocabulary: which tokens are kept, and that nothing but speed changes."""

import dataclasses
import json
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx import generate, load
from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.convert import convert
from dspark_mlx.convert.corpus import Corpus, count_tokens, read_prompts, read_texts
from dspark_mlx.convert.generations import own_counts
from dspark_mlx.convert.vocabulary import always_kept, choose_tokens, most_useful
from dspark_mlx.errors import CheckpointError, OptionError, UnsupportedError
from tests.tools import FIXTURES, TARGET, VANILLA, quantized_target, run

PROMPT = [1, 277, 293, 84, 93]


def test_choose_keeps_what_must_be_then_the_most_counted_then_low_ids():
    assert choose_tokens({7: 3, 5: 9, 6: 3}, 4, 10, always=[9]) == [5, 6, 7, 9]
    assert choose_tokens({}, 3, 10, always=[8]) == [0, 1, 8]
    assert choose_tokens({4: 1}, 2, 10, always=[8, 99]) == [4, 8]
    assert choose_tokens({4: 1}, 4, 10, always=[8], ties={4: 1, 6: 7, 7: 2}) == [4, 6, 7, 8]


@pytest.mark.parametrize("size", [1, 10, 11])
def test_size_must_be_a_proper_part(size):
    with pytest.raises(OptionError, match="between the 2 tokens that are always kept"):
        choose_tokens({}, size, 10, always=[3, 4])


def test_stop_special_and_template_tokens_are_always_kept(pair_of):
    pair = pair_of(False)
    kept = always_kept(pair.tokenizer, pair.stop_ids)
    assert {0, 1, 2, 4, 5} <= kept
    assert kept <= set(most_useful(TARGET, 320, len(kept), Corpus()))


def test_counts_come_from_text_and_jsonl(tmp_path, pair_of):
    (tmp_path / "a.txt").write_text("The fox\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"turns": ["The fox", {"x": "fox"}], "n": 3}))
    texts = list(read_texts([tmp_path / "a.txt", tmp_path / "b.jsonl"]))
    assert texts == ["The fox\n", "The fox", "fox"]
    counts = count_tokens(texts, pair_of(False).tokenizer)
    assert counts.total() == sum(len(pair_of(False).tokenizer.encode(t, add_special_tokens=False))
                                 for t in texts)  # fmt: skip
    assert list(read_prompts([tmp_path / "a.txt", tmp_path / "b.jsonl"])) == ["The fox"] * 2
    with pytest.raises(OptionError, match=r"missing\.txt"):
        list(read_texts([tmp_path / "missing.txt"]))
    (tmp_path / "c.jsonl").write_text('{"turns": []}\n\n{')
    with pytest.raises(OptionError, match=r"c\.jsonl, line 3 is not JSON"):
        list(read_texts([tmp_path / "c.jsonl"]))


def test_counts_come_from_what_the_target_says(pair_of):
    pair = pair_of(False)
    counts = own_counts(pair, 500, ["The fox"])
    assert counts == own_counts(pair, 500, ["The fox"])  # sampled with fixed keys
    assert counts.total() >= 500 and max(counts) < 320
    answer = generate(pair, messages=[{"role": "user", "content": "The fox"}], max_tokens=160)
    said = [t for t in answer.tokens if t not in pair.stop_ids]
    assert not Counter(said) - own_counts(pair, 1, ["The fox"])  # greedy answers to the prompts


def test_a_target_that_says_nothing_is_no_corpus(pair_of):
    pair = pair_of(False)
    mute = dataclasses.replace(pair, tokenizer=_Mute(pair.tokenizer))
    with pytest.raises(UnsupportedError, match="ends every answer at once"):
        own_counts(mute, 100)


class _Mute:
    """A tokenizer wrapper to which every token ends the answer."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.eos_token_ids = list(range(320))

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("drafter", ["dspark-vanilla", "dspark-rnn", "dflash-deepspec", "eagle3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_kept_tokens_are_drafted_and_nothing_is_lost(tmp_path, pair_of, drafter, temperature):
    convert(FIXTURES / drafter, tmp_path / "out", target=TARGET, draft_vocab=120)
    pair = load(TARGET, tmp_path / "out")
    kept = set(pair.drafter.draft_ids.tolist())
    assert len(kept) == 120 == pair.drafter.config.draft_vocab_size
    answer = generate(pair, PROMPT, max_tokens=60, temperature=temperature, seed=3, cutoff="full")
    assert answer.stats.proposed > 0 and answer.stats.accepted > 0
    if not temperature:
        assert answer.tokens == generate(pair_of(False), PROMPT, max_tokens=60).tokens


def test_rows_are_the_full_drafters_rows(tmp_path, pair_of):
    full = pair_of("dspark-vanilla")
    convert(VANILLA, tmp_path / "out", target=TARGET, draft_vocab=150)
    small = load(TARGET, tmp_path / "out").drafter
    ids = small.draft_ids
    logits = []
    for drafter in (full.drafter, small):
        context = drafter.start()
        _, features = full.tapped(mx.array(PROMPT), full.target.new_cache())
        drafter.extend(context, features, mx.array([*PROMPT[1:], 85]))
        logits.append(drafter.run_block(context, 85, 7, 7).logits)
    np.testing.assert_allclose(np.array(logits[0][:, ids]), np.array(logits[1]), atol=1e-5)


def test_a_borrowed_head_gives_its_rows(tmp_path):
    """A drafter without a head of its own stores the target's kept rows."""
    config = json.loads((VANILLA / "config.json").read_text())
    weights = mx.load(str(VANILLA / "model.safetensors"))
    source = tmp_path / "source"
    source.mkdir()
    del weights["lm_head.weight"], weights["embed_tokens.weight"]
    mx.save_safetensors(str(source / "model.safetensors"), weights)
    (source / "config.json").write_text(json.dumps(config))
    convert(source, tmp_path / "out", target=TARGET, draft_vocab=100)
    pair = load(TARGET, tmp_path / "out")
    head = pair.target.model.lm_head.weight[pair.drafter.draft_ids]
    assert mx.array_equal(pair.drafter.lm_head.weight, head)


def test_a_damaged_map_is_refused(tmp_path):
    convert(VANILLA, tmp_path / "out", target=TARGET, draft_vocab=100)
    file = str(tmp_path / "out/model.safetensors")
    weights = dict(mx.load(file).items())
    mx.eval(weights)
    for value, message in ((320, "outside 0..319"), (int(weights["draft_ids"][1]), "twice")):
        ids = weights["draft_ids"].tolist()
        ids[0] = value
        mx.save_safetensors(file, weights | {"draft_ids": mx.array(ids, mx.int32)})
        with pytest.raises(CheckpointError, match=message):
            load(TARGET, tmp_path / "out")


def test_command_line_says_what_is_missing(capsys, tmp_path):
    out = ["-o", tmp_path / "out"]
    line = run(capsys, "convert", VANILLA, *out, "--draft-vocab", "64").refusal()
    assert "--target" in line
    line = run(capsys, "convert", VANILLA, *out, "--vocab-text", "x").refusal()
    assert "need --draft-vocab" in line


def test_a_reduced_head_stays_the_drafters_own(tmp_path):
    """Sharing the target's tables takes the embedding only: the target has no such head."""
    target = quantized_target(tmp_path / "target")
    convert(VANILLA, tmp_path / "out", target=target, draft_vocab=120, share_embeddings=True)
    config = open_drafter(tmp_path / "out").config
    assert (config.embeddings, config.head, config.draft_vocab_size) == ("target", "own", 120)
