"""Sequential temperature scaling, and its metrics against the reference's own."""

import json

import numpy as np
import pytest

from dspark_mlx.calibration import (
    Calibration,
    Sample,
    Scale,
    acceptance_of,
    fit_scales,
    position_metrics,
    weighted,
)
from dspark_mlx.errors import CheckpointError
from dspark_mlx.heads.confidence import to_probability


def samples_of(case):
    return [
        Sample(
            judged=r["effective_proposal_length"],
            accepted=r["accepted"],
            confidence=tuple(map(to_probability, r["confidence_logits"])),
        )
        for r in case["rounds"]
    ]


@pytest.fixture(scope="module")
def cases(fixtures):
    return json.loads((fixtures / "vectors" / "confidence_metrics.json").read_text())


def test_metrics_are_those_of_the_reference(cases):
    for case in cases:
        ours = position_metrics(samples_of(case))
        judged = [row for row in case["per_position"] if row["total_weight"]]
        for mine, theirs in zip(ours, judged, strict=True):
            assert mine.count == theirs["total_weight"]
            assert mine.ece == pytest.approx(theirs["ece"], abs=1e-6)
            assert mine.auroc == pytest.approx(theirs["auc"], abs=1e-6)
            assert mine.brier == pytest.approx(theirs["brier"], abs=1e-6)
            assert mine.mean_prediction == pytest.approx(theirs["pred_mean"], abs=1e-6)
            assert mine.mean_label == pytest.approx(theirs["target_mean"], abs=1e-6)
        for name, key in (("ece", "ece_mean"), ("auroc", "auc_mean"), ("brier", "brier_mean")):
            mean = weighted((m.count, getattr(m, name)) for m in ours)
            assert mean == pytest.approx(case["summary"][key], abs=1e-6)


def rounds(count, sharpness, seed, drafts=4):
    """Rounds whose confidence logits are `sharpness` times the true ones."""
    numbers = np.random.default_rng(seed)
    z = numbers.standard_normal((count, drafts)) * 1.2 + 0.8
    good = numbers.random((count, drafts)) < 1 / (1 + np.exp(-z))
    accepted = np.cumprod(good, axis=1).sum(axis=1)
    told = 1 / (1 + np.exp(-sharpness * z))
    return [Sample(drafts, int(a), tuple(map(float, c)))
            for a, c in zip(accepted, told, strict=True)]  # fmt: skip


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
def test_known_temperatures_are_found(sharpness):
    """Confidences that are too sharp by a factor get that factor as their temperature."""
    for offsets in (True, False):
        fit = fit_scales(rounds(12000, sharpness, 1), 4, offsets)
        assert [s.temperature for s in fit] == pytest.approx([sharpness] * 4, rel=0.3)
        assert [s.offset for s in fit] == pytest.approx([0.0] * 4, abs=0.25 * offsets)
    held = rounds(6000, sharpness, 2)
    before, after = position_metrics(held), position_metrics(held, fit)
    for b, a in zip(before, after, strict=True):
        assert a.ece < a.floor + 0.012
        assert a.ece < b.ece or sharpness == 1.0
    # a position keeps its own order (one temperature), though not that of the product
    assert after[0].auroc == pytest.approx(before[0].auroc, abs=2e-3)
    assert weighted((m.count, m.auroc) for m in after) == pytest.approx(
        weighted((m.count, m.auroc) for m in before), abs=0.01
    )


def test_ties_and_thin_positions_stay_at_one():
    same = [Sample(2, k % 2, (0.5, 0.5)) for k in range(60)]  # sigmoid(0 / T) is the same for all T
    assert fit_scales(same, 3, offsets=False) == (Scale(), Scale(), Scale())
    assert [s.temperature for s in fit_scales(same, 3)] == [1.0, 1.0, 1.0]


def test_an_offset_mends_what_no_temperature_can():
    """A head that is too sure throughout: an even chance is told as 73%."""
    shifted = [
        Sample(s.judged, s.accepted, tuple(1 / (1 + (1 - c) / c / np.e) for c in s.confidence))
        for s in rounds(12000, 1.0, 4)
    ]
    alone, both = fit_scales(shifted, 4, offsets=False), fit_scales(shifted, 4)
    assert [s.offset for s in both] == pytest.approx([-1.0] * 4, abs=0.25)
    first = [position_metrics(shifted, fit)[0].ece for fit in (None, alone, both)]
    assert first[0] > 0.1 and first[1] > 0.05 and first[2] < 0.02


def test_cut_rounds_count_where_they_were_judged():
    """Positions behind an accepted stop token are in no figure."""
    part = [Sample(1, 1, (0.9, 0.1)), Sample(2, 1, (0.9, 0.1))]
    assert [m.count for m in position_metrics(part)] == [2, 1]
    assert acceptance_of(part) == (1.0, 0.0)
    assert acceptance_of([Sample(3, 0), Sample(3, 0)]) == (0.0,)


def test_records_read_back_and_refuse_damage():
    sample = Sample(3, 2, (0.5, 0.25, 0.125))
    assert Sample.from_list(json.loads(json.dumps(sample.to_list())), "x") == sample
    fit = Calibration(0.7, (0.6, 0.5), 321, (Scale(1.1, 0.5), Scale(0.9)))
    assert Calibration.from_dict(json.loads(json.dumps(fit.to_dict())), "x") == fit
    assert fit.accept_len == pytest.approx(1 + 0.6 + 0.3)
    for bad in (
        None,
        [],
        {},
        fit.to_dict() | {"rounds": "many"},
        fit.to_dict() | {"more": 1},
        fit.to_dict() | {"scales": [{"temperature": 0, "offset": 0}]},
    ):
        with pytest.raises(CheckpointError, match="here is damaged"):
            Calibration.from_dict(bad, "here")
    for bad in (None, [1], [1, 2, None], [3, 1, [0.5]], [2, "x", None]):
        with pytest.raises(CheckpointError, match="line 3: no record of a round"):
            Sample.from_list(bad, "line 3")
