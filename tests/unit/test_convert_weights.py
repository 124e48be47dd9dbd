"""Weights that cannot be converted: one line that names file and tensor, nothing left behind."""

import os
import pickle
import zipfile

import mlx.core as mx
import pytest

from dspark_mlx.convert import convert

from ..tools import FIXTURES, VANILLA, Case, copy, edit_tensors

SHARDED = FIXTURES / "dspark-vanilla-sharded"


@pytest.fixture
def case(tmp_path, capsys):
    return Case(tmp_path, capsys)


@pytest.mark.parametrize("size", [0, 5, 2000, 300_000, -1])
def test_truncated_safetensors(case, size):
    copy(VANILLA, case.source)
    path = case.source / "model.safetensors"
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    line = case.refused()
    assert "model.safetensors" in line and ("truncated" in line or "empty" in line)


def test_missing_shard(case):
    copy(SHARDED, case.source)
    (case.source / "model-00002-of-00002.safetensors").unlink()
    line = case.refused()
    assert "names the shard model-00002-of-00002.safetensors, which is missing" in line


def test_renamed_tensor_is_named_by_both_names(case):
    copy(VANILLA, case.source)
    norm = mx.load(str(VANILLA / "model.safetensors"))["norm.weight"]
    edit_tensors(case.source, norm__weight=None, final_norm__weight=norm)
    line = case.refused()
    assert "missing norm.weight" in line
    assert "not part of such a drafter: final_norm.weight" in line


def test_wrong_shape_is_given_beside_the_right_one(case):
    copy(VANILLA, case.source)
    edit_tensors(case.source, layers__1__mlp__up_proj__weight=mx.zeros((128, 63)))
    line = case.refused()
    assert "layers.1.mlp.up_proj.weight has shape [128, 63], expected [128, 64]" in line


def test_missing_extra_and_misshapen_tensors_are_all_listed(case):
    copy(VANILLA, case.source)
    edit_tensors(case.source, fc__weight=None, extra=mx.zeros(3), norm__weight=mx.zeros(63))
    line = case.refused()
    assert "missing fc.weight" in line and "extra" in line and "norm.weight has shape [63]" in line


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_one_value_that_is_not_finite_is_found(case, value):
    copy(VANILLA, case.source)
    weight = mx.load(str(VANILLA / "model.safetensors"))["markov_head.markov_w2.weight"]
    weight[17, 3] = float(value)
    edit_tensors(case.source, markov_head__markov_w2__weight=weight)
    assert "NaN or infinite values in markov_head.markov_w2.weight" in case.refused()


@pytest.mark.parametrize(("dtype", "name"), [(mx.uint8, "U8"), (mx.int32, "I32")])
def test_weights_that_are_no_floats_are_not_taken_for_weights(case, dtype, name):
    # float8 exports come as raw bytes; read as integers they would be finite and of right shape
    copy(VANILLA, case.source)
    edit_tensors(case.source, hidden_norm__weight=mx.ones((64,), dtype=dtype))
    assert f"hidden_norm.weight is {name}, expected F32 or BF16 or F16" in case.refused()


def test_value_too_large_for_float16_is_refused_and_fits_bfloat16(case):
    copy(VANILLA, case.source)
    edit_tensors(case.source, norm__weight=mx.full((64,), 70000.0))
    line = case.refused("--dtype", "float16")
    assert "norm.weight" in line and "float16" in line and "fc.weight" not in line
    convert(case.source, case.out, dtype="bfloat16")


class Evil:
    """Unpickling this runs a command."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_malicious_pickle_is_refused_by_name_and_not_run(case):
    case.source.mkdir()
    (case.source / "config.json").write_text((VANILLA / "config.json").read_text())
    marker = case.folder / "executed"
    with zipfile.ZipFile(case.source / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"fc.weight": Evil(marker)}, 2))
        archive.writestr("archive/version", "3\n")
    line = case.refused()
    assert "pytorch_model.bin" in line and ".system" in line
    assert not marker.exists()


def test_control_characters_in_a_tensor_name_do_not_reach_the_terminal(case):
    copy(VANILLA, case.source)
    edit_tensors(case.source, **{"evil\x1b[2J\r\n": mx.zeros(1)})
    line = case.refused()
    assert "evil[2J" in line and "\x1b" not in line and "\r" not in line


def test_a_name_list_is_cut_short(case):
    copy(VANILLA, case.source)
    edit_tensors(case.source, **{f"x{'y' * 200}{k}": mx.zeros(1) for k in range(100)})
    assert "and 92 more" in case.refused() or "..." in case.refused()
