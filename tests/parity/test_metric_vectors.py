"""`eval`'s metrics against vectors and golden runs computed by the reference's own functions."""

import json

import pytest

from dspark_mlx.calibration import Scale
from dspark_mlx.heads.confidence import to_probability
from dspark_mlx.measure.confidence import confidence_metrics, mended
from dspark_mlx.measure.metrics import Acceptance, RoundRecord, of_columns, to_columns


def record(accepted, proposal_len, accept_len, logits=None):
    confidence = None if logits is None else tuple(map(to_probability, logits))
    return RoundRecord(0, 7, proposal_len, proposal_len, accepted, accept_len, confidence)


def read(folder, name):
    return json.loads((folder / "vectors" / name).read_text())


def test_acceptance(fixtures):
    for case in read(fixtures, "metrics.json"):
        rounds = [
            record(r["accepted"], r["proposal_len"], r["accept_len"])
            for response in case["responses"]
            for r in response
        ]
        ours, row = Acceptance.of(rounds), case["row"]
        padding = [None] * (case["max_proposal_tokens"] - len(ours.marginal))
        assert ours.marginal + padding == pytest.approx(row["accept_rates_by_position"])
        for mine, theirs in (
            (ours.accept_len, row["acceptance_length"]),
            (ours.verify_rate, row["verify_rate"]),
            (ours.proposal, row["draft_tokens_per_proposal"]),
        ):
            assert (mine or 0) == pytest.approx(theirs or 0)
        assert of_columns(to_columns(rounds)) == rounds


def test_confidence(fixtures):
    for case in read(fixtures, "confidence_metrics.json"):
        rounds = [
            record(r["accepted"], r["effective_proposal_length"], 0, r["confidence_logits"])
            for r in case["rounds"]
        ]
        judged = [p for p in case["per_position"] if p["total_weight"]]
        check(confidence_metrics(rounds), judged, case["summary"])


@pytest.mark.parametrize("name", ["dspark-vanilla", "dspark-rnn", "dspark-gemma4"])
def test_golden_runs(fixtures, name):
    golden = json.loads((fixtures / "goldens" / f"{name}.json").read_text())
    rounds = [
        record(r["accepted"], r["proposal_len"], r["accept_len"], r["confidence_logits"])
        for run in golden["runs"]
        if run["threshold"] == 0 and run["max_new_tokens"] == 64
        for r in run["rounds"]
    ]
    want = golden["summary"]["0.0"]
    ours = Acceptance.of(rounds)
    assert ours.accept_len == pytest.approx(want["row"]["acceptance_length"])
    assert ours.verify_rate == pytest.approx(want["row"]["verify_rate"])
    assert list(ours.judged) == want["raw"]["proposals_at_pos"]
    assert list(ours.accepted) == want["raw"]["accepted_at_pos"]
    metrics = want["confidence_metrics"]
    check(confidence_metrics(rounds), metrics["per_position"], metrics)


def check(ours, per_position, summary):
    """To 1e-6: the reference takes its sigmoids in float32."""
    assert len(ours.positions) == len(per_position)
    for mine, theirs in zip(ours.positions, per_position, strict=True):
        assert mine.count == theirs["total_weight"]
        assert mine.auroc == pytest.approx(theirs["auc"], abs=1e-6)
        for name, other in (
            ("ece", "ece"), ("brier", "brier"), ("predicted", "pred_mean"),
            ("observed", "target_mean"),
        ):  # fmt: skip
            assert getattr(mine, name) == pytest.approx(theirs[other], abs=1e-6)
        for b, point in zip(mine.bins, theirs.get("reliability", ()), strict=False):
            got = (b.low, b.high, b.predicted, b.observed, b.count)
            want = (*point["range"], point["avg_pred"], point["avg_target"], point["weight"])
            assert got == pytest.approx(want, abs=1e-6)
        assert len(theirs.get("reliability", mine.bins)) == len(mine.bins)
    assert ours.ece == pytest.approx(summary["ece_mean"], abs=1e-6)
    assert ours.auroc == pytest.approx(summary["auc_mean"], abs=1e-6)
    assert ours.brier == pytest.approx(summary["brier_mean"], abs=1e-6)


def test_the_identity_of_accept_length_and_conditional_acceptance():
    """With a fixed block and no stop token, the accept length is 1 + sum of products."""
    rounds = [record(a, 3, a + 1) for a in (0, 0, 1, 3, 2, 3, 1, 0)]
    ours, product, total = Acceptance.of(rounds), 1.0, 1.0
    for share in ours.conditional:
        product *= share
        total += product
    assert ours.accept_len == pytest.approx(total)


def test_nothing_counted_is_none_not_zero():
    empty = Acceptance.of([])
    assert (empty.accept_len, empty.verify_rate, empty.proposal, empty.marginal) == (
        None, None, None, [],
    )  # fmt: skip
    assert confidence_metrics([record(1, 2, 2)]) is None


def test_temperatures_soften_by_position():
    rounds = [record(k % 3, 3, 1, [2.0, -1.0, 0.5]) for k in range(6)]
    same = confidence_metrics(rounds, [Scale()] * 3)
    assert same.ece == pytest.approx(confidence_metrics(rounds).ece, abs=1e-12)
    soft = confidence_metrics(rounds, [Scale(2.0), Scale(), Scale()])
    assert soft.positions[0].predicted == pytest.approx(to_probability(1.0))
    assert mended(1.0, Scale(2.0)) < 1.0 and mended(0.0, Scale(2.0)) > 0.0
    assert mended(0.5, Scale(2.0, 1.0)) == pytest.approx(to_probability(1.0))
