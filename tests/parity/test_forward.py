"""Drafter and target forwards against tensors recorded from the PyTorch reference."""

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx import load

DRAFTERS = {  # drafter folder -> golden file (packagings of one drafter share it)
    "dspark-vanilla": "dspark-vanilla",
    "dspark-vanilla-sharded": "dspark-vanilla",
    "dspark-vanilla-bin": "dspark-vanilla",
    "dspark-vanilla-bf16": "dspark-vanilla-bf16",
    "dspark-noconf": "dspark-noconf",
    "dspark-conf-nomarkov": "dspark-conf-nomarkov",
    "dspark-gated": "dspark-gated",
    "dspark-rnn": "dspark-rnn",
    "dflash-deepspec": "dflash-deepspec",
    "dspark-gemma4": "dspark-gemma4",
}


def close(ours, golden, tolerance=1e-4):
    np.testing.assert_allclose(np.array(ours), np.array(golden), atol=tolerance, rtol=0)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafter_forward(pair_of, fixtures, drafter):
    model = pair_of(drafter).drafter
    golden, meta = mx.load(
        str(fixtures / "goldens" / f"{DRAFTERS[drafter]}.safetensors"), return_metadata=True
    )
    prompts = meta["prompts"].split(",")
    assert len(prompts) == 2
    for prompt in prompts:
        context = model.start()
        for round_ in range(3):
            want = {k.split(".", 2)[2]: v for k, v in golden.items()
                    if k.startswith(f"p{prompt}.r{round_}.")}  # fmt: skip
            check_round(model, context, want)


def check_round(model, context, want):
    features = want["tap_features"]  # [n, 5 d]
    before = context.length
    positions = want["position_ids"].tolist()
    assert positions[0] == before
    model.extend(context, mx.split(features, 5, axis=-1), mx.zeros(features.shape[0], mx.int32))
    ids = want["block_input_ids"].tolist()
    count = len(ids)
    assert ids[1:] == [model.config.mask_token_id] * (count - 1)
    block = model.run_block(context, ids[0], count, count)
    close(block.hidden, want["draft_hidden"])
    close(block.logits, want["base_logits"])
    corrected = []

    def pick(logits):
        corrected.append(logits)
        return mx.argmax(logits, axis=-1), None

    proposal = model.draw(block, ids[0], pick)
    close(mx.concatenate(corrected), want["corrected_logits"])
    assert proposal.tokens.tolist() == want["proposed_tokens"].tolist()
    if "confidence_logits" in want:
        close(proposal.confidence, want["confidence_logits"])
    else:
        assert proposal.confidence is None
    assert context.length == before + features.shape[0] == positions[-1] - count + 1


@pytest.mark.parametrize(("family", "tolerance"), [("qwen3", 1e-4), ("gemma4", 5e-4)])
def test_target_taps(fixtures, family, tolerance):
    target = load(fixtures / f"target-{family}", False).target
    golden = mx.load(str(fixtures / "goldens" / f"target-{family}.safetensors"))
    ids = golden["input_ids"]
    layers = list(range(-1, target.depth - 1))
    logits, features = target.tapped(layers)(ids, target.new_cache())
    untapped = target.model(ids[None], cache=target.new_cache().entries)[0]
    assert mx.array_equal(logits, untapped)
    close(logits, golden["logits"], tolerance)
    close(features[0], golden["embedding"], tolerance)
    for layer in layers[1:]:
        close(features[layer + 1], golden[f"layer_{layer}"], tolerance)


def test_proposing_twice_changes_nothing(pair_of):
    pair = pair_of("dspark-vanilla")
    context = pair.drafter.start()
    _, features = pair.tapped(mx.array([1, 277, 293, 84, 93]), pair.target.new_cache())
    pair.drafter.extend(context, features, mx.array([277, 293, 84, 93, 85]))

    def greedy(logits):
        return mx.argmax(logits, axis=-1), None

    first = pair.drafter.propose(context, 85, 7, 7, greedy)
    lengths = [c.offset for c in context.caches]
    second = pair.drafter.propose(context, 85, 7, 7, greedy)
    assert lengths == [c.offset for c in context.caches] == [5, 5]
    assert mx.array_equal(first.tokens, second.tokens)
    close(first.confidence, second.confidence)
