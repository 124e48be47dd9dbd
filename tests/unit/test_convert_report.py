"""What the conversion report says of the tensors: read, renamed, left out."""

import json

from .. import gguf_writer
from .. import packagings as pack
from ..tools import VANILLA, run


def report(capsys, folder, out):
    done = run(capsys, "convert", folder, "-o", out)
    assert done.code == 0
    return done.out, json.loads((out / "conversion.json").read_text())


def test_nothing_renamed_in_deepspecs_form(capsys, tmp_path):
    text, found = report(capsys, VANILLA, tmp_path / "out")
    assert f"tensors  {found['tensors']} of the source\n" in text
    assert (found["renamed"], found["dropped"]) == ({}, {})


def test_speculators_verifier_is_left_out_and_d2t_made_anew(capsys, tmp_path):
    rows = list(range(0, 320, 4))
    folder = pack.write(tmp_path / "d", *pack.speculators(*pack.native(), rows=rows))
    text, found = report(capsys, folder, tmp_path / "out")
    assert found["renamed"] == {"draft_ids": ["d2t", "t2d"]}
    assert found["dropped"] == {"verifier_norm.weight": "of no use to a drafter"}
    assert "1 renamed or made anew" in text and "dropped  verifier_norm.weight" in text


def test_packed_and_fused_tensors_name_their_parts(capsys, tmp_path):
    folder = pack.write(tmp_path / "n", *pack.nvidia(*pack.native()))
    _, found = report(capsys, folder, tmp_path / "n-out")
    name = "layers.0.mlp.up_proj."
    assert found["renamed"][f"{name}weight"] == [
        f"{name}weight", f"{name}weight_scale", f"{name}weight_scale_2"]  # fmt: skip
    folder = pack.write(tmp_path / "f", *pack.specforge(*pack.native(), fused=True))
    _, found = report(capsys, folder, tmp_path / "f-out")
    assert found["renamed"]["layers.1.self_attn.k_proj.weight"] == [
        "layers.1.self_attn.qkv_proj.weight"]  # fmt: skip
    _, found = report(capsys, gguf_writer.gguf(tmp_path / "g", *pack.native()), tmp_path / "g-out")
    assert found["renamed"]["layers.0.mlp.up_proj.weight"] == ["blk.0.ffn_up.weight"]
