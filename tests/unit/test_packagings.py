"""One drafter in every packaging resolves to one config and proposes the same (P42, P43, P44)."""

import dataclasses
import json

import pytest

from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.checkpoints.source import PACKAGINGS
from dspark_mlx.config import DrafterConfig
from dspark_mlx.drafters.weights import load_drafter
from dspark_mlx.errors import CheckpointError, UnsupportedError

from .. import gguf_writer as writer
from .. import packagings as pack
from ..tools import FIXTURES, behaviour, identical


class Tables:
    """A target's embedding and head, as a drafter without its own borrows them."""

    def __init__(self, tensors):
        self.rows, self.matrix = tensors["embed_tokens.weight"], tensors["lm_head.weight"]
        self.vocab_size = self.rows.shape[0]

    def embed(self, ids):
        return self.rows[ids]

    def head(self, hidden):
        return hidden @ self.matrix.T


def opened(folder, tensors, name="dspark-vanilla"):
    """The drafter in `folder`, bound to the tables of a fixture where it has none."""
    source = open_drafter(folder)
    with source.tensors:
        drafter = load_drafter(source)
    drafter.bind(Tables(tensors))
    return source.config, drafter


def in_gguf(folder, config, tensors):
    return writer.gguf(folder, config, tensors)


def written(function, **options):
    """A writer of a folder from a function that gives config and tensors."""
    return lambda folder, config, tensors: pack.write(folder, *function(config, tensors, **options))


# name -> (writer, what it leaves to the target, whether it names the target's depth)
SAME = {
    "speculators, all tables": (written(pack.speculators), False, False),
    "speculators 0.9, none": (written(pack.speculators, full=False), True, False),
    "specforge": (written(pack.specforge), False, True),
    "specforge, fused": (written(pack.specforge, fused=True), False, True),
    "lfm2": (written(pack.lfm2), True, True),
    "lfm2, no prefix": (written(pack.lfm2, prefix=""), True, True),
    "gguf": (in_gguf, False, False),
}
HEADS = ("dspark-vanilla", "dspark-gated", "dspark-rnn", "dspark-noconf", "dspark-conf-nomarkov",
         "dflash-deepspec")  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("packed", SAME)
def test_one_drafter_one_config_one_behaviour(tmp_path, packed, name):
    if "gguf" in packed and name in ("dspark-gated", "dspark-rnn"):
        pytest.skip("GGUF has no names for these heads")
    writer, borrows, deep = SAME[packed]
    config, tensors = pack.native(name)
    ours, drafter = opened(writer(tmp_path / "d", config, tensors), tensors)
    want, reference = opened(FIXTURES / name, tensors)
    table = "target" if borrows else "own"
    want = dataclasses.replace(
        want, embeddings=table, head=table, num_target_layers=8 if deep else None
    )
    assert ours == want
    assert identical(behaviour(drafter), behaviour(reference))


def test_eagle3_of_speculators_is_deepspecs(tmp_path):
    config, tensors = pack.native("eagle3")
    folder = pack.write(tmp_path / "d", *pack.eagle3(config, tensors))
    ours, drafter = opened(folder, tensors)
    want, reference = opened(FIXTURES / "eagle3", tensors)
    assert ours == dataclasses.replace(want, num_target_layers=None)
    assert identical(behaviour(drafter), behaviour(reference))


def test_dflash_of_zlab_is_slot_one(tmp_path):
    config, tensors = pack.native("dflash-deepspec")
    for at, nested in (("new", True), ("old", False)):
        ours, kept = pack.zlab(config, tensors)
        if not nested:
            ours |= ours.pop("dflash_config")
        found, drafter = opened(pack.write(tmp_path / at, ours, kept), tensors)
        want, _ = opened(FIXTURES / "dflash-deepspec", tensors)
        assert found == dataclasses.replace(
            want, embeddings="target", head="target", predict_from_slot=1
        )
        assert drafter.drafts_of(7) == 6


def test_a_reduced_vocabulary_is_absolute_rows(tmp_path):
    rows = [2, 4, 5, 17, 80, 81, 200, 319]
    config, tensors = pack.native()
    folder = pack.write(tmp_path / "d", *pack.speculators(config, tensors, rows=rows))
    ours, drafter = opened(folder, tensors)
    assert (ours.draft_vocab_size, ours.vocab_size) == (8, 320)
    assert drafter.draft_ids.tolist() == rows
    native = config | {"draft_vocab_size": 8}
    kept = tensors | pack.reduced(tensors, rows, 320)
    _, same = opened(pack.write(tmp_path / "n", native, kept), tensors)
    assert identical(behaviour(drafter), behaviour(same))


@pytest.mark.parametrize("name", ["dspark-vanilla", "dflash-deepspec"])
def test_facts_stated_twice_are_one_config(tmp_path, name):
    """As NVIDIA writes them: at the top, again in dflash_config, taps in both conventions."""
    config, tensors = pack.native(name)
    config |= {"dflash_query_causal": True, "attention_sink_bias": False, "has_lm_head": True}
    want, _ = opened(pack.write(tmp_path / "once", config, tensors), tensors)
    twice = pack.nested_again(config)
    found, _ = opened(pack.write(tmp_path / "twice", twice, tensors), tensors)
    assert found == want
    del twice["num_target_layers"], twice["target_layer_ids"], twice["mask_token_id"]
    found, _ = opened(pack.write(tmp_path / "nested", twice, tensors), tensors)
    assert found == dataclasses.replace(want, num_target_layers=None)
    twice["dflash_config"]["causal"] = False
    with pytest.raises(CheckpointError, match=r"but dflash_config\.causal is False"):
        open_drafter(pack.write(tmp_path / "torn", twice, tensors))


def test_generic_class_name_without_projector_type(tmp_path):
    config, tensors = pack.native()
    plain = config | {"architectures": ["DSparkDraftModel"]}
    found, _ = opened(pack.write(tmp_path / "d", plain, tensors), tensors)
    assert found == opened(FIXTURES / "dspark-vanilla", tensors)[0]


def test_a_config_written_before_these_fields_reads_as_it_did():
    config = open_drafter(FIXTURES / "dspark-vanilla").config
    old = config.to_dict()
    for key in ("attention_gate", "feature_norm", "norm_before_residual", "norm_output"):
        del old[key]
    del old["rope"]["rotary_dims"]
    assert DrafterConfig.from_dict(old) == config
    assert DrafterConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def every_form():
    """Config of every fixture and packaging, by name."""
    config, tensors = pack.native()
    eagle, weights = pack.native("eagle3")
    forms = {
        "zlab": pack.zlab(config, tensors)[0],
        "speculators": pack.speculators(config, tensors)[0],
        "speculators dflash": pack.speculators(config, tensors, "dflash")[0],
        "eagle3": pack.eagle3(eagle, weights)[0],
        "specforge": pack.specforge(config, tensors)[0],
        "lfm2": pack.lfm2(config, tensors)[0],
        "nvidia": pack.nvidia(config, tensors)[0],
        "ornith": pack.ornith(config, tensors)[0],
        "nvidia, nested": pack.nested_again(pack.nvidia(config, tensors)[0]),
        "nvidia, side file": config | {"hf_quant_config": {"quantization": {}}},
        "gguf": {"general": {"architecture": "dflash"}},
        "dflash2": {"architectures": ["DFlash2DraftModel"], "dflash_config": {"selector_rank": 4}},
        "dflash2 by keys": pack.zlab(config, tensors)[0] | {"dflash_config": {"selector_rank": 4}},
        "dflash2 speculators": {"speculators_model_type": "dflash2"},
        "deepseek v4": {"architectures": ["DeepseekV4ForCausalLM"], "dspark_block_size": 5},
        "converted": {"format": "dspark-mlx", "format_version": 1},
    }
    folders = [p for p in FIXTURES.iterdir() if p.name.startswith(("dspark-", "dflash-", "eagle"))]
    return forms | {p.name: json.loads((p / "config.json").read_text()) for p in folders}


def test_no_config_is_of_two_packagings():
    for name, config in every_form().items():
        found = [p.NAME for p in PACKAGINGS if p.matches(config)]
        assert len(found) == 1, (name, found)


REFUSED = {
    "dflash2": "DFlash 2 is not supported yet; it needs grouped dynamic convolutions",
    "dflash2 by keys": "DFlash 2 is not supported yet",
    "dflash2 speculators": "DFlash 2 is not supported yet",
    "deepseek v4": r"embedded DSpark drafter \(mtp\.\*\) is not supported yet; it needs latent",
}


@pytest.mark.parametrize("form", REFUSED)
def test_later_work_is_refused_by_name_before_any_weight_is_opened(tmp_path, form):
    (tmp_path / "config.json").write_text(json.dumps(every_form()[form]))
    with pytest.raises(UnsupportedError, match=REFUSED[form]):
        open_drafter(tmp_path)


def nested(config, path, value=None):
    """The config with one dotted key set, or (None) removed."""
    copy = json.loads(json.dumps(config))
    *parents, last = path.split(".")
    inner = copy
    for parent in parents:
        inner = inner.setdefault(parent, {})
    if value is None:
        inner.pop(last)
    else:
        inner[last] = value
    return copy


LAYER = [f"transformer_layer_config.{key}" for key in pack.SHAPE]
NEEDED = {
    "zlab": ["dflash_config.target_layer_ids", "dflash_config.mask_token_id", "block_size",
             "rope_theta", *pack.SHAPE],
    "speculators": ["aux_hidden_state_layer_ids", "mask_token_id", "block_size", *LAYER,
                    "transformer_layer_config.rope_parameters",
                    "transformer_layer_config.model_type"],
    "eagle3": ["eagle_aux_hidden_state_layer_ids", *LAYER, "speculators_config.proposal_methods"],
    "specforge": ["dflash_config.target_layer_ids", "dflash_config.mask_token_id", "block_size",
                  "rope_theta", *pack.SHAPE],
    "lfm2": ["dflash_config.target_layer_ids", "dflash_config.mask_token_id", "block_size",
             "dflash_config.num_target_layers", "rope_is_neox_style", "rope_theta", *pack.SHAPE],
    "nvidia": ["target_layer_ids", "mask_token_id", "block_size", "num_target_layers",
               "rope_parameters", *pack.SHAPE],
    "ornith": ["target_layer_ids", "mask_token_id", "block_size", "num_target_layers",
               "partial_rotary_factor", "rope_parameters", *pack.SHAPE],
}  # fmt: skip


@pytest.mark.parametrize(("form", "key"), [(f, k) for f, keys in NEEDED.items() for k in keys])
def test_every_required_key_is_named_with_its_file(tmp_path, form, key):
    config, tensors = pack.native("eagle3" if form == "eagle3" else "dspark-vanilla")
    ours, kept = getattr(pack, form)(config, tensors)
    folder = pack.write(tmp_path / "d", nested(ours, key), kept)
    with pytest.raises(CheckpointError) as error:
        open_drafter(folder)
    last = key.rpartition(".")[2]
    named = "rope_theta" if last == "rope_parameters" else last
    assert named in str(error.value) and str(folder / "config.json") in str(error.value)
    assert "\n" not in str(error.value)
