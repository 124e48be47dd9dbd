"""GGUF drafters: raw bytes, both architectures, and what their metadata means."""

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.errors import CheckpointError, UnsupportedError

from .. import gguf_writer as writer
from .. import packagings as pack
from ..numpy_forward import Facts
from ..tools import FIXTURES, behaviour, identical
from .test_packaging_maths import check_block, floats
from .test_packagings import opened


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_gguf_in_half_precision_is_read_from_raw_bytes(tmp_path, dtype):
    config, tensors = pack.native()
    ours, drafter = opened(writer.gguf(tmp_path / "d", config, tensors, dtype), tensors)
    kind = str(dtype).rpartition(".")[2]
    assert ours.dtype == kind
    cast = {name: value.astype(dtype) for name, value in tensors.items()}
    native = pack.write(tmp_path / "n", config | {"dtype": kind}, cast)
    _, same = opened(native, cast)
    assert {str(v.dtype) for v in (drafter.norm.weight, drafter.fc.weight)} == {str(dtype)}
    assert identical(behaviour(drafter), behaviour(same))
    lone = open_drafter(tmp_path / "d" / "drafter.gguf")
    assert lone.config == ours and lone.packaging == "GGUF"


def test_dspark_architecture_of_gguf(tmp_path):
    config, tensors = pack.native()
    names = {"fc": "dspark.fc", "enc.output_norm": "dspark.hidden_norm",
             "markov_w1": "dspark.markov_head_a", "markov_w2": "dspark.markov_head_b",
             "conf_proj": "dspark.confidence_head"}  # fmt: skip
    stored = {writer.gguf_name(k): v for k, v in tensors.items()}
    stored = {f"{names.get(k.rpartition('.')[0], k.rpartition('.')[0])}.{k.rpartition('.')[2]}": v
              for k, v in stored.items()}  # fmt: skip
    path = tmp_path / "d.gguf"
    path.write_bytes(writer.gguf_bytes(writer.gguf_metadata(config, "dspark"), stored))
    _, drafter = opened(path, tensors)
    _, reference = opened(FIXTURES / "dspark-vanilla", tensors)
    assert identical(behaviour(drafter), behaviour(reference))
    stored["dspark.log_snr_fc1.weight"] = mx.ones((2, 2))
    path.write_bytes(writer.gguf_bytes(writer.gguf_metadata(config, "dspark"), stored))
    with pytest.raises(UnsupportedError, match="log-SNR features"):
        open_drafter(path)


MASKS = [  # metadata -> what layers see
    ({"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False]},
     [(8, False), (None, False)]),
    ({"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False],
      "attention.causal": True}, [(8, True), (None, True)]),
    ({"attention.causal": True}, [(None, True)] * 2),
]  # fmt: skip


@pytest.mark.parametrize(("metadata", "masks"), MASKS)
def test_masks_and_slot(tmp_path, metadata, masks):
    """A DFlash without tables: slot 1, windows and causality as the metadata says."""
    config, tensors = pack.native("dflash-deepspec")
    bare = pack.without(tensors, *pack.TABLES)
    changes = {f"dflash.{key}": value for key, value in metadata.items()}
    folder = writer.gguf(tmp_path / "d", config, bare, **changes,
                         **{"dflash.sample_from_anchor": None})  # fmt: skip
    found, drafter = opened(folder, tensors)
    assert (found.embeddings, found.head, found.predict_from_slot) == ("target", "target", 1)
    check_block(drafter, floats(tensors), Facts(slot=1, masks=masks))


def test_sinks(tmp_path):
    config, tensors = pack.native()
    numbers = np.random.default_rng(3)
    sinks = {i: mx.array(numbers.standard_normal(4).astype(np.float32)) for i in range(2)}
    stored = {writer.gguf_name(k): v for k, v in tensors.items()}
    stored |= {f"blk.{i}.attn_sinks.weight": v for i, v in sinks.items()}
    path = tmp_path / "d.gguf"
    path.write_bytes(writer.gguf_bytes(writer.gguf_metadata(config), stored))
    found, drafter = opened(path, tensors)
    assert found.attention_sinks
    named = {f"layers.{i}.self_attn.attention_sink_bias": v for i, v in sinks.items()}
    check_block(drafter, floats(tensors | named), Facts())


GGUF_NEEDED = ["embedding_length", "feed_forward_length", "block_count", "attention.head_count",
               "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "block_size",
               "target_layers", "sample_from_anchor", "rope.freq_base"]  # fmt: skip


@pytest.mark.parametrize("key", GGUF_NEEDED)
def test_every_required_key_of_gguf_is_named(tmp_path, key):
    config, tensors = pack.native()
    folder = writer.gguf(tmp_path / "d", config, tensors, **{f"dflash.{key}": None})
    with pytest.raises(CheckpointError) as error:
        open_drafter(folder)
    named = {"rope.freq_base": "rope_theta"}.get(key, key)
    assert named in str(error.value) and "drafter.gguf" in str(error.value)
