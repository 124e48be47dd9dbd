"""Where a packaging computes otherwise than DeepSpec: against the plain forward of numpy_forward.

Weights are random, and every feature is shown to matter: without it the logits move.
"""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx.checkpoints import open_drafter

from .. import packagings as pack
from ..numpy_forward import Facts, draft_block
from .test_packagings import opened

CONTEXTS = (1, 7, 40)


def floats(tensors):
    return {k: np.array(v.astype(mx.float32)).astype(np.float64) for k, v in tensors.items()}


def features_of(length, taps=5, width=64):
    numbers = np.random.default_rng(length)
    return [numbers.standard_normal((length, width)).astype(np.float32) for _ in range(taps)]


def ours(drafter, features, following, anchor, cuts=()):
    """Greedy drafts, their logits and confidences from the package."""
    context, rows, start = drafter.start(), [], 0
    for stop in (*cuts, len(features[0])):
        part = [mx.array(f[start:stop]) for f in features]
        drafter.extend(context, part, mx.array(following[start:stop]))
        start = stop

    def pick(logits):
        rows.append(np.array(logits))
        return mx.argmax(logits, axis=-1), None

    slots = drafter.block_size
    drawn = drafter.propose(context, anchor, slots, drafter.drafts_of(slots), pick)
    sure = None if drawn.confidence is None else np.array(drawn.confidence)
    return drawn.tokens.tolist(), np.concatenate(rows), sure


def check_block(drafter, weights, facts):
    """Equal at every context length; the features can be handed over in parts."""
    for length in CONTEXTS:
        features, following = features_of(length), list(range(5, 5 + length))
        cuts = () if length < 3 else (1, length // 2)
        tokens, rows, sure = ours(drafter, features, following, 17, cuts)
        wide = [f.astype(np.float64) for f in features]
        want, logits, confidence = draft_block(weights, facts, wide, 17)
        np.testing.assert_allclose(rows, logits, atol=1e-4, rtol=0)
        assert tokens == want
        if sure is not None:
            np.testing.assert_allclose(sure, confidence, atol=1e-4, rtol=0)


def differs(weights, facts, **plain):
    """Whether a feature matters: without it the logits are others."""
    features = [f.astype(np.float64) for f in features_of(40)]
    logits = [draft_block(weights, f, features, 17)[1] for f in
              (facts, dataclasses.replace(facts, **plain))]  # fmt: skip
    return logits[0].shape != logits[1].shape or np.abs(logits[0] - logits[1]).max() > 1e-2


MIXED = ["sliding_attention", "full_attention"]
ZLAB = {  # what the config says -> what the forward must do
    "slot 1": ({}, {}),
    "sliding layers are causal": (
        {"layer_types": MIXED, "sliding_window": 8, "use_sliding_window": True},
        {"masks": [(8, True), (None, False)]},
    ),
    "is_causal false": (
        {"layer_types": MIXED, "sliding_window": 8, "is_causal": False},
        {"masks": [(8, False), (None, False)]},
    ),
    "is_causal true": ({"is_causal": True}, {"masks": [(None, True)] * 2}),
    "a window shorter than the block": (
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 3},
        {"masks": [(3, True)] * 2},
    ),
    "factors": (
        {"final_logit_softcapping": 4.0, "input_embedding_scale": 3.0, "output_multiplier": 0.5},
        {"softcap": 4.0, "embedding_scale": 3.0, "multiplier": 0.5},
    ),
}


@pytest.mark.parametrize("case", ZLAB)
def test_zlab(tmp_path, case):
    says, does = ZLAB[case]
    config, tensors = pack.native("dflash-deepspec")
    packed, kept = pack.zlab(config, tensors)
    inner = {k: v for k, v in says.items() if k in ("input_embedding_scale", "output_multiplier")}
    packed["dflash_config"] |= inner  # some nested, some at the top
    packed |= {k: v for k, v in says.items() if k not in inner}
    _, drafter = opened(pack.write(tmp_path / "d", packed, kept), tensors)
    weights, facts = floats(tensors), Facts(slot=1, **does)
    check_block(drafter, weights, facts)
    assert differs(weights, facts, slot=0)
    for name in does:
        assert differs(weights, facts, **{name: getattr(Facts(), name)}), name


def test_lfm2_rotates_neighbours(tmp_path):
    config, tensors = pack.native()
    folder = pack.write(tmp_path / "d", *pack.lfm2(config, tensors, neox=False))
    found, drafter = opened(folder, tensors)
    assert found.rope.interleaved
    weights, facts = floats(tensors), Facts(interleaved=True)
    check_block(drafter, weights, facts)
    assert differs(weights, facts, interleaved=False)


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # fmt: skip
SCALED = [("rope_scaling", YARN), ("rope_parameters", YARN), ("rope_parameters", LLAMA3),
          ("rope_scaling", {"rope_type": "linear", "factor": 3.0}),
          ("rope_scaling", YARN | {"beta_fast": 16.0, "beta_slow": 2.0})]  # fmt: skip


@pytest.mark.parametrize(("stated", "scaling"), SCALED)
def test_specforge_scaling_is_real(tmp_path, stated, scaling):
    config, tensors = pack.native()
    packed, kept = pack.specforge(config, tensors)
    packed[stated] = scaling | {"rope_theta": packed["rope_theta"]}
    if scaling == YARN:  # what the rule gives anyway may be stated
        packed[stated] |= {"attention_factor": 0.1 * np.log(8.0) + 1.0, "truncate": True}
    found, drafter = opened(pack.write(tmp_path / "d", packed, kept), tensors)
    assert found.rope.scaling == scaling
    weights, facts = floats(tensors), Facts(scaling=scaling)
    check_block(drafter, weights, facts)
    assert differs(weights, facts, scaling=None)


def test_deepspec_yarn_is_a_copy_of_the_targets(tmp_path):
    config, tensors = pack.native()
    copied = config["rope_parameters"] | YARN | {"partial_rotary_factor": 0.25}
    folder = pack.write(tmp_path / "d", config | {"rope_parameters": copied}, tensors)
    found, drafter = opened(folder, tensors)
    assert found.rope.scaling is None and found.rope.partial == 1
    check_block(drafter, floats(tensors), Facts())


@pytest.mark.parametrize("non_causal", [False, True])
def test_speculators_windows_and_vocabulary(tmp_path, non_causal):
    config, tensors = pack.native()
    rows = [2, 4, 5, 17, 80, 81, 200, 319]
    packed, kept = pack.speculators(config, tensors, rows=rows)
    packed["sliding_window_non_causal"] = non_causal
    packed["transformer_layer_config"] |= {
        "layer_types": MIXED, "sliding_window": 8, "use_sliding_window": True,
    }  # fmt: skip
    _, drafter = opened(pack.write(tmp_path / "d", packed, kept), tensors)
    weights = floats(tensors | pack.reduced(tensors, rows, 320)) | {"draft_ids": np.array(rows)}
    facts = Facts(masks=[(8, not non_causal), (None, False)])
    check_block(drafter, weights, facts)
    assert differs(weights, facts, masks=[(8, non_causal), (None, False)])
    assert differs(weights, facts, masks=[(None, not non_causal), (None, False)])


def test_qwen35_native(tmp_path):
    """Gated queries, a quarter of the head rotated, and norms that are stored less one."""
    config, tensors = pack.native()
    packed, kept = pack.ornith(config, tensors)
    found, drafter = opened(pack.write(tmp_path / "d", packed, kept), tensors)
    assert (found.rope.rotary_dims, found.attention_gate) == (4, True)
    weights = floats(kept)
    weights |= {k: v + 1 for k, v in weights.items() if k.endswith("norm.weight")}
    facts = Facts(gated=True, rotary=4)
    check_block(drafter, weights, facts)
    assert differs(weights, facts, rotary=None)


SLOTS = [  # stated, tokens, block -> slot
    (True, 7, 0), (False, 6, 1), (None, 7, 0), (None, 6, 1), (True, 5, 0), (False, 3, 1),
]  # fmt: skip


@pytest.mark.parametrize(("stated", "tokens", "slot"), SLOTS)
def test_speculators_slot(tmp_path, stated, tokens, slot):
    config, tensors = pack.native()
    packed, kept = pack.speculators(config, tensors)
    packed["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = tokens
    packed["sample_from_anchor"] = stated
    found = open_drafter(pack.write(tmp_path / "d", packed, kept)).config
    assert found.predict_from_slot == slot


def test_speculators_dflash_is_slot_one_by_default(tmp_path):
    config, tensors = pack.native("dflash-deepspec")
    packed, kept = pack.speculators(config, tensors, "dflash")
    del packed["sample_from_anchor"], packed["speculators_config"]["proposal_methods"]
    _, drafter = opened(pack.write(tmp_path / "d", packed, kept), tensors)
    check_block(drafter, floats(tensors), Facts(slot=1))


def test_nvidia(tmp_path):
    """NVFP4 to the bit; sinks, causal block, window, slot 1 and borrowed head in one forward."""
    config, tensors = pack.native()
    numbers = np.random.default_rng(3)
    sinks = {f"layers.{i}.self_attn.attention_sink_bias":
             mx.array(numbers.standard_normal(4).astype(np.float32)) for i in range(2)}  # fmt: skip
    packed, kept = pack.nvidia(config, tensors | sinks)
    packed |= {"layer_types": MIXED, "sliding_window": 8, "use_sliding_window": True}
    found, drafter = opened(pack.write(tmp_path / "d", packed, kept), tensors)
    assert (found.predict_from_slot, found.head, found.attention_sinks) == (1, "target", True)
    weights = floats(tensors | sinks)
    for name in [n for n in tensors if ".mlp." in n]:
        stem = name.removesuffix("weight")
        exact = pack.unpack_nvfp4({k: kept[stem + k] for k in
                                   ("weight", "weight_scale", "weight_scale_2")})  # fmt: skip
        halved = mx.array(exact.astype(np.float32)).astype(mx.bfloat16)
        rounded = np.array(halved.astype(mx.float32))
        module = dict(drafter.named_modules())[stem[:-1]]
        assert np.array_equal(np.array(module.weight.astype(mx.float32)), rounded)
        weights[name] = rounded.astype(np.float64)
    drafter.set_dtype(mx.float32)
    facts = Facts(slot=1, masks=[(8, True), (None, True)])
    check_block(drafter, weights, facts)
    bare = {k: v for k, v in weights.items() if "sink" not in k}
    features = [f.astype(np.float64) for f in features_of(7)]
    with_sinks, without = (draft_block(w, facts, features, 17)[1] for w in (weights, bare))
    assert np.abs(with_sinks - without).max() > 1e-2


def test_every_code_and_scale_of_nvfp4(tmp_path):
    """All 16 codes under all 254 scales that are numbers, for a whole scale of odd digits."""
    from dspark_mlx.checkpoints.nvidia import _decode

    scales = np.array([s for s in range(256) if s & 127 != 127], np.uint8)[:, None]
    codes = np.tile(np.arange(8, dtype=np.uint8) * 34 + 16, (len(scales), 1))
    whole = np.float32(0.0123456789)
    parts = {"weight": ("U8", codes.shape, codes.tobytes()),
             "weight_scale": ("F8_E4M3", scales.shape, scales.tobytes()),
             "weight_scale_2": ("F32", (), whole.tobytes())}  # fmt: skip
    want = mx.array(pack.unpack_nvfp4(parts).astype(np.float32)).astype(mx.bfloat16)
    got = _decode(mx.array(codes), mx.array(scales), mx.array(whole))
    assert mx.array_equal(got, want).item()
    # mlx's own factor means the largest value, 448 * 6 of these units
    own = mx.dequantize(mx.array(codes).view(mx.uint32), mx.array(scales), mode="nvfp4",
                        global_scale=mx.array(whole * 448 * 6), dtype=mx.float32)  # fmt: skip
    np.testing.assert_allclose(np.array(own), pack.unpack_nvfp4(parts), rtol=1e-6)
