"""The PyTorch comparison of `convert`: what it covers, and that it sees what is wrong."""

import importlib
import json

import pytest

from dspark_mlx.convert import report
from dspark_mlx.convert.torch_parity import TOLERANCE, torch_parity

from ..tools import FIXTURES, VANILLA, python, run

KINDS = ("dspark-vanilla", "dspark-gated", "dspark-rnn", "dspark-conf-nomarkov", "dflash-deepspec",
         "dspark-vanilla-bin", "dspark-vanilla-sharded")  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_stage_agrees(name):
    pytest.importorskip("torch")
    found = torch_parity(FIXTURES / name)
    assert {"context", "layer 0", "layer 1", "norm", "embedding", "head"} <= set(found)
    assert ("markov head" in found) == (name != "dflash-deepspec")
    assert max(found.values()) < 1e-5


def test_a_wrong_forward_is_seen(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from dspark_mlx.drafters import qwen3

    right = qwen3.rope_of

    def turned(config):
        rope = right(config)
        rope.base = 5e3
        return rope

    monkeypatch.setattr(qwen3, "rope_of", turned)
    found = torch_parity(VANILLA)
    assert found["context"] < 1e-5 and found["layer 0"] > TOLERANCE
    assert "WARNING" in report.parity_text(found) and "layer 0" in report.parity_text(found)


def test_report_has_it(capsys, tmp_path):
    pytest.importorskip("torch")
    done = run(capsys, "convert", VANILLA, "-o", tmp_path / "out", "-q")
    assert "largest difference from a PyTorch forward" in done.out and "layer 1" in done.out
    stages = json.loads((tmp_path / "out/conversion.json").read_text())["torch_parity"]
    assert max(stages.values()) < 1e-5


def test_other_kinds_say_so():
    pytest.importorskip("torch")
    for name in ("eagle3", "dspark-gemma4"):
        assert "covers DeepSpec's" in torch_parity(FIXTURES / name)


def test_without_torch_conversion_is_the_same(capsys, tmp_path, monkeypatch):
    def absent(name, *rest):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    assert "cannot be imported" in torch_parity(VANILLA)


def test_torch_is_imported_by_nothing_else():
    code = "import dspark_mlx.convert.cli, sys; print('torch' in sys.modules)"
    assert python("-c", code).out.strip() == "False"
