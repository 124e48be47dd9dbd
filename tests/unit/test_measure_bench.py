"""`bench`: equal counts on every run, ratios of equal work only, comparisons with earlier runs."""

import json

import pytest

from dspark_mlx.measure import speed
from dspark_mlx.measure.arms import Arm, DrafterChoice
from dspark_mlx.measure.benchmark import Case, Outcome, PlainRunner, SpeculativeRunner, Timing
from dspark_mlx.measure.contexts import lengthened
from dspark_mlx.measure.datasets import Example
from dspark_mlx.measure.prepare import Task
from dspark_mlx.sampling import Sampling

from ..tools import TARGET, VANILLA, run

ARGS = ["--model", TARGET, "--drafter", VANILLA, "--limit", 1, "--max-tokens", 8, "--repeats", 1]
CASE = Case("here", Sampling(), (("a 0", (1, 2)), ("a 1", (1, 3))))


def outcome(count, decode, first=0.5, **more):
    return Outcome(tuple(range(count)), first, decode, 1.0, **more)


def timings(plain, ours):
    rows = [Timing(0, "plain", p, r, o) for (p, r), o in plain.items()]
    return rows + [Timing(0, "ours", p, r, o) for (p, r), o in ours.items()]


def test_medians_spreads_and_paired_ratios():
    plain = {("a", 0): outcome(11, 2.0), ("a", 1): outcome(11, 4.0), ("b", 0): outcome(11, 1.0)}
    ours = {
        key: outcome(11, o.decode / 2, rounds=4, committed=10, syncs=6, forwards=5, rows=20,
                     drafted=12)
        for key, o in plain.items()
    }  # fmt: skip
    base, row = speed.rows(timings(plain, ours), [CASE], "plain")
    assert base["ratio"]["mean"] == pytest.approx(1.0)
    assert row["ratio"] == {
        "mean": pytest.approx(2.0), "low": pytest.approx(2.0), "high": pytest.approx(2.0),
    }  # fmt: skip
    assert base["decode_rate"]["median"] == pytest.approx(5.0)
    assert row["decode_rate"]["median"] == pytest.approx(10.0)
    assert row["rate"]["median"] == pytest.approx(11 / 1.5)
    assert row["first_ms"]["median"] == pytest.approx(500)
    assert (row["accept_len"], row["rounds"], row["syncs"], row["forwards"]) == (2.5, 12, 18, 15)
    assert (base["accept_len"], base["syncs"]) == (None, None)
    assert (row["parted"], row["no_ratio"]) == (0, None)


def test_no_ratio_of_unequal_work():
    plain = {("a", 0): outcome(11, 2.0), ("b", 0): outcome(11, 2.0)}
    ours = {("a", 0): outcome(11, 1.0), ("b", 0): outcome(9, 1.0)}
    _, row = speed.rows(timings(plain, ours), [CASE], "plain")
    assert row["ratio"] is None
    assert row["no_ratio"] == "unequal work: 1 of 2 answers differ in length"
    one = {("a", 0): outcome(1, 0.0)}
    assert speed.rows(timings(one, one), [CASE], "plain")[1]["no_ratio"] == (
        "an answer has only one token"
    )


def test_answers_that_part_are_counted():
    plain = {("a", 0): Outcome((1, 2, 3), 0.1, 1.0, 1.0)}
    ours = {("a", 0): Outcome((1, 2, 4), 0.1, 1.0, 1.0)}
    row = speed.rows(timings(plain, ours), [CASE], "plain")[1]
    assert row["parted"] == 1 and row["ratio"] is not None


def test_forwards_waits_and_rounds_are_the_same_every_time(pair_of):
    runner = SpeculativeRunner(Arm(DrafterChoice("v", "x", pair_of("dspark-vanilla"))))
    runs = [runner.run([5, 6, 7, 8], 24, Sampling(), 1) for _ in range(2)]
    first, second = ([getattr(o, n) for n in ("tokens", "rounds", "syncs", "forwards", "rows")]
                     for o in runs)  # fmt: skip
    assert first == second
    one = runs[0]
    assert one.forwards == one.rounds + 2  # the prompt but its last token, and that token
    assert one.syncs == one.rounds + 2  # one wait per round
    assert one.committed == len(one.tokens) - 1
    assert one.first > 0 and one.decode > 0 and one.memory > 0


def test_plain_is_mlx_lms(pair_of):
    ours = SpeculativeRunner(Arm(DrafterChoice("v", "x", pair_of("dspark-vanilla"))))
    args = ([5, 6, 7, 8], 16, Sampling(), 1)
    assert PlainRunner(pair_of(False)).run(*args).tokens == ours.run(*args).tokens


def test_prompts_are_lengthened_to_the_token(pair_of):
    tasks = [Task(Example("a", "a", i, ""), tuple(range(5 + i, 9 + 2 * i))) for i in range(3)]
    for label, ids in lengthened(pair_of(False), tasks, 50, 10):
        own = tasks[int(label.split()[1])].ids
        assert len(ids) == 50 and ids[-len(own) :] == own


def test_the_grid_and_the_comparison(capsys, tmp_path):
    path = tmp_path / "bench.json"
    grid = ["--cutoffs", "full,fixed:1", "--drafter-bits", "keep,8", "--temperatures", "0,1"]
    done = run(capsys, "bench", *ARGS, *grid, "--draft-model", TARGET, "-o", path)
    assert done.code == 0
    report = json.loads(path.read_text())
    arms = [row["arm"] for row in report["rows"][:6]]
    assert arms == [
        "mlx-lm plain", "dspark-vanilla keep full", "dspark-vanilla keep fixed:1",
        "dspark-vanilla 8-bit full", "dspark-vanilla 8-bit fixed:1",
        "mlx-lm draft target-qwen3 x3",
    ]  # fmt: skip
    assert [row["temperature"] for row in report["rows"]] == [0.0] * 6 + [1.0] * 6
    assert report["rows"][5]["accept_len"] > 2.5  # a model is its own perfect draft model
    assert all(row["ratio"] for row in report["rows"][:6])
    assert len(report["runs"]) == 36 and report["round_split"]
    assert "a profiled round takes draft" in done.out

    few = ["--cutoffs", "full,fixed:1", "--drafter-bits", "keep"]
    again = run(capsys, "bench", *ARGS, *few, "--compare", path, "--contexts", 90)
    assert "no row is in both" in again.out and "settings contexts: None before" in again.out
    report["rows"][1]["decode_rate"] = {"median": 0.1, "low": 0.1, "high": 0.1}
    report["rows"][2]["rounds"] += 1
    path.write_text(json.dumps(report))
    again = run(capsys, "bench", *ARGS, *few, "--compare", path)
    lines = [line for line in again.out.splitlines() if "(prompts as they are" in line]
    assert "apart" in lines[1] and "equal" in lines[1] and "DIFFER" in lines[2]


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--compare", "/nowhere.json"], "is not a report of `bench --out`"),
        (["--compare", VANILLA / "config.json"], "is not a report of `bench --out`"),
        (["--contexts", "2"], "--contexts 2 is shorter than a prompt"),
        (["--contexts", "1000000"], "do not fit"),
        (["--contexts", "x"], "--contexts 'x'"),
        (["--repeats", 0], "--repeats must be 1"),
        (["--temperatures", "hot"], "--temperatures 'hot'"),
        (["--draft-model", "/nowhere"], "neither a folder nor a hub id"),
    ],
)
def test_bad_input_is_one_line(capsys, argv, word):
    assert word in run(capsys, "bench", *ARGS, *argv).refusal()
