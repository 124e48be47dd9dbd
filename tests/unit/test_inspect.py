"""`inspect` reads no weights and says what a drafter is, needs, and whether it fits."""

import json

import mlx.core as mx

from tests.tools import FIXTURES, TARGET, VANILLA, run


def test_describes_without_reading_weights(capsys, monkeypatch):
    monkeypatch.setattr(mx, "load", None)
    monkeypatch.setattr(mx, "array", None)
    done = run(capsys, "inspect", VANILLA, "--json")
    found = json.loads(done.out)
    assert found["packaging"] == "DeepSpec native"
    assert found["config"]["target_layer_ids"] == [1, 2, 4, 5, 6]
    assert found["bytes"] == 584684 or found["bytes"] > 500_000


def test_says_whether_it_fits(capsys):
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
