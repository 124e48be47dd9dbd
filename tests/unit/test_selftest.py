"""The converter's self-test finds planted errors in taps and slots, and passes the right ones."""

import copy
import dataclasses
import json

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx.convert import selftest
from dspark_mlx.convert.scoring import Text, score
from dspark_mlx.convert.selftest import STATED, sample_texts, try_conventions, verdict
from tests.tools import FIXTURES, TARGET, run

pytestmark = pytest.mark.xdist_group("selftest")  # one process samples the texts, once

RIGHT = ("dspark-vanilla", "dspark-gated", "dspark-rnn", "dflash-deepspec", "eagle3",
         "dspark-gemma4")  # fmt: skip


@pytest.fixture(scope="module")
def texts(pair_of):
    """Texts of each target, sampled once; half of what `convert` takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "ANSWERS", 6)
        return {family: sample_texts(pair_of(name)) for family, name in (
        ("qwen3", "dspark-vanilla"), ("gemma4", "dspark-gemma4"))}  # fmt: skip


def trials_of(pair_of, texts, name, **changes):
    pair = pair_of(name)
    drafter = copy.copy(pair.drafter)
    drafter.config = dataclasses.replace(drafter.config, **changes)
    family = "gemma4" if "gemma4" in name else "qwen3"
    return try_conventions(pair.target, drafter, texts[family])


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_conventions_pass(pair_of, texts, name):
    trials = trials_of(pair_of, texts, name)
    assert trials[0].name == STATED
    assert verdict(trials) is None, [(t.name, t.accept_len) for t in trials]


@pytest.mark.parametrize(
    ("name", "shift"),
    [("dspark-vanilla", 1), ("dspark-gated", 1), ("dflash-deepspec", -1), ("dspark-vanilla", -1)],
)
def test_a_planted_shift_of_the_taps_is_found(pair_of, texts, name, shift):
    ids = tuple(i + shift for i in pair_of(name).drafter.config.target_layer_ids)
    wrong = verdict(trials_of(pair_of, texts, name, target_layer_ids=ids))
    assert wrong is not None and f"taps {-shift:+d} layer" in wrong


@pytest.mark.parametrize("name", ["dspark-vanilla", "dflash-deepspec"])
def test_a_planted_slot_is_found(pair_of, texts, name):
    wrong = verdict(trials_of(pair_of, texts, name, predict_from_slot=1))
    assert wrong is not None and "from slot 0" in wrong


@pytest.mark.parametrize("name", ["dspark-vanilla", "dspark-rnn", "dflash-deepspec", "eagle3"])
def test_chances_are_those_of_single_proposals(pair_of, name):
    """Against `propose` with forced tokens, anchor by anchor."""
    pair = pair_of(name)
    drafter, ids = pair.drafter, (1, 277, 293, 84, 93, 85, 90, 70, 88, 280, 5, 17, 80)
    [trial] = score(pair.target, {"x": drafter}, [Text(ids, 3)], stride=1)
    logits, features = pair.tapped(mx.array(ids), pair.target.new_cache())
    p = np.array(mx.softmax(logits, axis=-1))
    for row, s in enumerate(range(3, len(ids) - 6)):
        context, k = drafter.start(), iter(range(1, 8))
        drafter.extend(context, [f[:s] for f in features], mx.array(ids[1 : s + 1]))

        def forced(logits, s=s, k=k):
            at = s + next(k)
            token = ids[at] if at < len(ids) else 0
            return mx.array([token]), mx.softmax(logits, axis=-1)

        q = np.array(drafter.propose(context, ids[s], 7, 7, forced).probs)
        np.testing.assert_allclose(
            trial.chances[row], np.minimum(p[s : s + 7], q).sum(-1), atol=1e-5
        )
    assert trial.anchors == len(ids) - 9
    assert trial.accept_len == pytest.approx(1 + np.cumprod(trial.chances, 1).sum(1).mean())


def test_the_report_has_it_all(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(selftest, "ANSWERS", 2)
    argv = ["convert", FIXTURES / "dspark-vanilla", "-o", tmp_path / "out", "--target", TARGET]
    done = run(capsys, *argv, "-q", "--q-bits", "4", "--q-group-size", "32")
    assert done.code == 0
    assert "as stated" in done.out and "taps +1 layer" in done.out and "by converting" in done.out
    report = json.loads((tmp_path / "out/conversion.json").read_text())
    assert report["selftest"][STATED] > 1.5
    assert report["selftest_source"] >= 0.9 * report["selftest"][STATED]
    assert report["warning"] is None
    assert report["round_bytes"][1] < report["round_bytes"][0]
    assert str(tmp_path) not in json.dumps(report)
