"""Cost curves: arithmetic, correction by real rounds, storage, and measuring a tiny pair."""

import dataclasses
import json
import math
import random

import pytest

from dspark_mlx import machine, paths
from dspark_mlx.calibration import Calibration, Scale
from dspark_mlx.costs import CostCurve, Costs, bucket_of
from dspark_mlx.errors import CheckpointError, OptionError
from dspark_mlx.timing import ensure_curve, full_curve, measure, quick_curve
from dspark_mlx.tuning import Tuning
from tests.drafters import random_dspark
from tests.fakes import pair_with, tiny_target

CURVE = CostCurve((1.0, 1.25, 1.5, 1.75), (0.25, 0.5, 0.75), overhead=0.25, look=0.125)


def test_arithmetic():
    assert CURVE.drafts == 3 and CURVE.plain == 1.0
    assert CURVE.round(0, 0) == 1.0
    assert CURVE.round(2, 1) == 0.5 + 0.25 + 1.25
    assert CURVE.round(3, 0, looked=True) == 0.75 + 0.25 + 0.125 + 1.0
    assert CURVE.break_even(3) == 0.75 + 0.25 + 1.75
    assert CURVE.can_pay
    assert not CostCurve((1.0, 2.5), (0.1,)).can_pay
    assert [bucket_of(n) for n in (0, 1023, 1024, 5000, 10**6)] == [0, 0, 1024, 4096, 65536]


def test_lines_between_measured_points():
    curve = CostCurve.through({1: 1.0, 2: 2.0, 8: 5.0}, {1: 0.1, 7: 0.7}, 7)
    assert curve.verify == pytest.approx((1.0, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0))
    assert curve.draft == pytest.approx([0.1 * k for k in range(1, 8)])


def test_read_back_and_damage():
    assert CostCurve.from_dict(json.loads(json.dumps(CURVE.to_dict())), "x") == CURVE
    body = CURVE.to_dict()
    for bad in (None, [], {}, body | {"verify": [1.0]}, body | {"draft": [0.1, 0.1, -1]},
                body | {"draft": [0.1, 0.1, math.nan]}, body | {"more": 1}):  # fmt: skip
        with pytest.raises(CheckpointError, match=r"here is damaged .*; delete it"):
            CostCurve.from_dict(bad, "here")


def test_live_prices_follow_the_machine():
    """Half as fast throughout, and one width dearer still; noise and outliers average out."""
    numbers, prices = random.Random(1), Costs({0: CURVE}).at(10)
    for _ in range(400):
        drawn = numbers.choice([0, 1, 3])
        true = 2 * CURVE.round(drawn, drawn) * (1.5 if drawn == 3 else 1.0)
        noise = math.exp(numbers.gauss(0, 0.1)) * (20 if numbers.random() < 0.02 else 1)
        prices.observe(drawn, drawn, False, true * noise)
    assert prices.plain == pytest.approx(2 * CURVE.plain, rel=0.15)
    assert prices.round(1, 1) == pytest.approx(2 * CURVE.round(1, 1), rel=0.15)
    assert prices.round(3, 3) == pytest.approx(3 * CURVE.round(3, 3), rel=0.15)
    assert prices.round(2, 2) > 1.5 * CURVE.round(2, 2), "never tried, but the machine is slower"


def test_frozen_prices_do_not_move():
    prices = Costs({0: CURVE}, frozen=True).at(10)
    for _ in range(50):
        prices.observe(2, 2, False, 99.0)
    assert prices.round(2, 2) == CURVE.round(2, 2)


def test_each_context_has_its_own_prices():
    costs = Costs({0: CURVE, 16384: CostCurve((9.0,) * 4, (0.1,) * 3)})
    for _ in range(60):
        costs.at(2000).observe(0, 0, False, 3.0)
    assert costs.at(100).plain == 1.0
    assert costs.at(2000).plain == pytest.approx(3.0, rel=0.1)
    assert costs.at(70000).plain == 9.0, "the nearest curve that was measured"


@pytest.fixture
def pair():
    target = tiny_target(0)
    return pair_with(target, random_dspark(target, 1))


def test_measuring(pair):
    """Every width has a time, and nothing is left behind in memory of the pair."""
    for curve in (full_curve(pair, context=20, sweeps=2), quick_curve(pair, seconds=0.05)):
        assert curve.drafts == 7 and len(curve.verify) == 8
        assert all(0 < s < 5 for s in (*curve.verify, *curve.draft))
        assert curve.look >= 0 and curve.sweeps >= 1
    with pytest.raises(OptionError, match=r"room for 512 positions, not for 600"):
        measure(pair, 600)
    with pytest.raises(OptionError, match="without a drafter"):
        measure(pair_with(pair.target))


def test_a_quick_curve_is_measured_once(pair):
    pair.tuning.curves.clear()
    ensure_curve(pair)
    first = pair.tuning.curves[0]
    ensure_curve(pair)
    assert pair.tuning.curves == {0: first}
    ensure_curve(pair_with(pair.target))  # nothing to measure


def test_kept_between_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "tuning", lambda: tmp_path)
    first = Tuning(lambda: "pair")
    first.add_curve(1024, CURVE)
    first.add_calibration(Calibration(0.0, (0.5,), 100, (Scale(1.2),)))
    first.add_calibration(Calibration(1.0, (0.4,), 100, (Scale(0.8),)))
    again = Tuning(lambda: "pair")
    assert again.curves == {1024: CURVE}
    assert again.calibration(0.0).scales == (Scale(1.2),)
    assert again.calibration(0.6).scales == (Scale(0.8),), "the nearest that was sampled"
    assert Tuning(lambda: "another").curves == {}
    assert Tuning(lambda: "another").calibration(0.0) is None
    assert Tuning().folder is None
    monkeypatch.setattr(machine, "identity", lambda: "another machine")
    assert Tuning(lambda: "pair").curves == {}
    assert Tuning(lambda: "pair").calibration(0.0) is not None, "of no machine in particular"


def test_damaged_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "tuning", lambda: tmp_path)
    Tuning(lambda: "pair").add_curve(0, CURVE)
    [file] = (tmp_path / "pair").iterdir()
    for content in ("", "{", "[]", '{"curve": {}}'):
        file.write_text(content)
        with pytest.raises(CheckpointError, match=f"{file.name}.*delete it"):
            _ = Tuning(lambda: "pair").curves


def test_a_folder_that_cannot_be_written(pair, tmp_path, monkeypatch):
    """A measurement for the moment is still good; one that was asked for says so."""

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dspark_mlx.tuning.write_file", full)
    monkeypatch.setattr(paths, "tuning", lambda: tmp_path)
    pair = dataclasses.replace(pair, tuning=Tuning(lambda: "pair"))
    ensure_curve(pair)
    assert pair.tuning.curves
    with pytest.raises(OSError):
        measure(pair, 20)


def test_new_knowledge_replaces_what_was_learned(pair):
    pair.tuning.learned["x"] = {"auto": 1}
    pair.tuning.add_curve(0, CURVE)
    assert pair.tuning.learned == {}
