"""The converter's self-test finds planted errors in taps and slots, and passes the right ones."""

import copy
import dataclasses
import json

import pytest

from dspark_mlx.convert.selftest import STATED, sample_texts, try_conventions, verdict
from tests.tools import FIXTURES, TARGET, run


@pytest.fixture(scope="module")
def texts(pair_of):
    return sample_texts(pair_of(False))


def trials_of(pair, texts, **changes):
    drafter = copy.copy(pair.drafter)
    drafter.config = dataclasses.replace(drafter.config, **changes)
    return try_conventions(pair.target, drafter, texts)


@pytest.mark.parametrize("name", ["dspark-vanilla", "dspark-gated", "eagle3"])
def test_the_right_conventions_pass(pair_of, texts, name):
    trials = trials_of(pair_of(name), texts)
    assert trials[0].name == STATED
    assert verdict(trials) is None, [(t.name, t.accept_len) for t in trials]


@pytest.mark.parametrize(
    ("name", "shift"), [("dspark-vanilla", 1), ("dspark-gated", 1), ("dflash-deepspec", -1)]
)
def test_a_planted_shift_of_the_taps_is_found(pair_of, texts, name, shift):
    ids = tuple(i + shift for i in pair_of(name).drafter.config.target_layer_ids)
    wrong = verdict(trials_of(pair_of(name), texts, target_layer_ids=ids))
    assert wrong is not None and f"taps {-shift:+d} layer" in wrong


@pytest.mark.parametrize("name", ["dspark-vanilla", "dflash-deepspec"])
def test_a_planted_slot_is_found(pair_of, texts, name):
    wrong = verdict(trials_of(pair_of(name), texts, predict_from_slot=1))
    assert wrong is not None and "from slot 0" in wrong


def test_the_report_has_it_all(capsys, tmp_path):
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
