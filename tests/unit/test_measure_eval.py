"""`eval`: DeepSpec's counts on golden prompts, resume, the head-off arm, every form of report."""

import csv
import io
import json
import re

import mlx.core as mx
import pytest

from dspark_mlx import Round, stream
from dspark_mlx.errors import OptionError
from dspark_mlx.measure import paper
from dspark_mlx.measure.arms import Arm, DrafterChoice, every_arm, without_head
from dspark_mlx.measure.datasets import Example
from dspark_mlx.measure.evaluate import EvalSettings, evaluate
from dspark_mlx.measure.head_cost import head_cost
from dspark_mlx.measure.metrics import bucket_of, bucket_order
from dspark_mlx.measure.prepare import Task
from dspark_mlx.measure.report.build import write
from dspark_mlx.measure.report.table import eval_text
from dspark_mlx.measure.results import results
from dspark_mlx.measure.store import Store

from ..tools import TARGET, VANILLA, run

GREEDY = EvalSettings(max_tokens=12, temperature=0.0)


def choice(pair_of, name="dspark-vanilla"):
    return DrafterChoice(name, name, pair_of(name))


def task(ids, index=0, name="golden"):
    return Task(Example(name, name, index, "text"), tuple(ids))


@pytest.fixture(scope="module")
def golden(fixtures):
    return json.loads((fixtures / "goldens" / "dspark-vanilla.json").read_text())


def test_rounds_are_counted_as_the_reference_counts_them(pair_of, golden):
    """Also at the limit: rounds that overshoot it, and one that begins exactly at it."""
    seen = set()
    picked = [r for r in golden["runs"] if r["max_new_tokens"] < 64 or r["prompt"] in (0, 3)]
    for one in picked:
        arm = Arm(choice(pair_of), f"threshold:{one['threshold']}")
        settings = EvalSettings(max_tokens=one["max_new_tokens"], temperature=0.0)
        ids = golden["prompts"][one["prompt"]]["ids"]
        [record] = evaluate([arm], [task(ids)], settings, Store(None), "target")
        assert record["tokens"] == one["output_ids"]
        for name in ("accept_len", "proposal_len", "accepted"):
            assert record["rounds"][name] == [r[name] for r in one["rounds"]], (one["cases"], name)
        assert record["rounds"]["position"] == [r["anchor_position"] for r in one["rounds"]]
        seen |= set(one["cases"])
    assert {"limit_inside_block", "extra_round_at_limit"} <= seen


def test_an_interrupted_run_goes_on_where_it_stopped(pair_of, golden, tmp_path):
    arms = every_arm([choice(pair_of)], ["full", "threshold:0.6"], [None])
    tasks = [task(p["ids"], i) for i, p in enumerate(golden["prompts"][:2])]
    settings = EvalSettings(max_tokens=8, temperature=1.0, seed=3)
    whole = evaluate(arms, tasks, settings, Store(None), "target")

    class Stop(Exception):
        pass

    def stop_at(number, known=[]):  # noqa: B006
        def done(note, was_known):
            known.append(was_known)
            if len(known) == number:
                raise Stop

        return done

    with pytest.raises(Stop), Store(tmp_path / "r.jsonl") as store:
        evaluate(arms, tasks, settings, store, "target", stop_at(3))
    known = []
    with Store(tmp_path / "r.jsonl") as store:
        rest = evaluate(arms, tasks, settings, store, "target", lambda n, k: known.append(k))
    assert known == [True, True, True, False]
    assert results(rest, arms) == results(whole, arms)
    other = EvalSettings(max_tokens=8, temperature=1.0, seed=4)
    with Store(tmp_path / "r.jsonl") as store:
        evaluate(arms[:1], tasks[:1], other, store, "target", lambda n, k: known.append(k))
        evaluate(arms[:1], tasks[:1], settings, store, "other", lambda n, k: known.append(k))
    assert known[-2:] == [False, False]


def test_the_head_switched_off_drafts_from_the_backbone_alone(pair_of, golden, fixtures):
    pair = pair_of("dspark-vanilla")
    path = str(fixtures / "goldens" / "dspark-vanilla.safetensors")
    tensors, metadata = mx.load(path, return_metadata=True)
    prompt = metadata["prompts"].split(",")[0]
    ids = golden["prompts"][int(prompt)]["ids"]
    off = without_head(pair)
    first = next(e for e in stream(off, ids, max_tokens=12, cutoff="full") if isinstance(e, Round))
    key = f"p{prompt}.r0.base_logits"
    assert list(first.proposed) == mx.argmax(tensors[key], axis=-1).tolist()
    assert first.confidence is not None and len(first.confidence) == 7
    on = next(e for e in stream(pair, ids, max_tokens=12, cutoff="full") if isinstance(e, Round))
    assert (
        list(on.proposed) == mx.argmax(tensors[key.replace("base", "corrected")], axis=-1).tolist()
    )


@pytest.mark.parametrize("name", ["dspark-rnn", "dspark-gated"])
def test_every_head_can_be_switched_off_and_stays_lossless(pair_of, golden, name):
    plain = golden["prompts"][0]
    off = without_head(pair_of(name))
    events = stream(off, plain["ids"], max_tokens=16, cutoff="full")
    tokens = [t for e in events if isinstance(e, Round) for t in e.tokens]
    assert tokens == plain["plain_greedy_ids"][1:16]


def test_arms_are_checked_before_anything_runs(pair_of):
    with pytest.raises(OptionError, match="no sequential head"):
        every_arm([choice(pair_of, "dflash-deepspec")], ["full"], [None], head_off=True)
    with pytest.raises(OptionError, match="asked for twice: dspark-vanilla full"):
        every_arm([choice(pair_of)], ["full", "full"], [None])
    with pytest.raises(OptionError, match="block_size 9"):
        every_arm([choice(pair_of)], ["full"], [9])
    names = [a.name for a in every_arm([choice(pair_of)], ["full"], [None, 3], head_off=True)]
    assert names == [
        "dspark-vanilla full", "dspark-vanilla full head off", "dspark-vanilla full block 3",
        "dspark-vanilla full block 3 head off",
    ]  # fmt: skip


def test_the_cost_of_the_head_is_timed_on_both(pair_of, golden):
    tasks = [task(p["ids"], i) for i, p in enumerate(golden["prompts"][:1])]
    cost = head_cost(choice(pair_of), tasks)
    assert cost["draft_ms"] > 0 and cost["without_head_ms"] > 0 and 0 <= cost["share"] < 1


def test_context_buckets():
    assert [bucket_of(n) for n in (0, 255, 256, 4095, 40000)] == [
        "0-255", "0-255", "256-511", "2048-4095", "32768+",
    ]  # fmt: skip
    assert sorted(["32768+", "256-511", "0-255"], key=bucket_order)[-1] == "32768+"


ARGS = ["--model", TARGET, "--drafter", VANILLA, "--limit", 1, "--max-tokens", 8]
PLOTS = [
    "accept_length_by_set", "acceptance_by_position", "reliability", "survival_against_confidence",
]  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """One run of the command with all it can show; (stdout, folder)."""
    folder = tmp_path_factory.mktemp("eval")
    (folder / "t.json").write_text(
        json.dumps({"scales": [{"temperature": 2.0, "offset": -0.5}] * 7})
    )
    out = io.StringIO()
    import contextlib

    from dspark_mlx import cli

    argv = ["eval", *ARGS, "--cutoffs", "full,threshold:0.6", "--head-off", "-o", folder / "r",
            "--calibration", folder / "t.json"]  # fmt: skip
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main([str(a) for a in argv]) == 0
    return out.getvalue(), folder / "r"


def test_the_command_writes_every_form(report):
    text, folder = report
    assert "accept len" in text and "confidence (calibrated): ECE" in text
    assert "sequential head" in text
    body = json.loads((folder / "report.json").read_text())
    assert [arm["head"] for arm in body["arms"]] == [True, True, False, False]
    assert body["prompts"] == 3 and set(body["arms"][0]["sets"]) == {"chat", "code", "math"}
    assert body["arms"][1]["confidence"] is None  # a cut hides what the rest would have been
    assert len(body["target"]["sha256"]) == len(body["drafters"][0]["sha256"]) == 64
    rows = list(csv.DictReader(io.StringIO((folder / "summary.csv").read_text())))
    assert float(rows[0]["accept_len"]) == body["arms"][0]["sets"]["chat"]["accept_len"]
    assert len(list(csv.DictReader((folder / "positions.csv").open()))) > 20
    assert {r["confidence"] for r in csv.DictReader((folder / "confidence.csv").open())} == {
        "raw", "calibrated",
    }  # fmt: skip
    for name in PLOTS:
        png, svg = folder / "plots" / f"{name}.png", folder / "plots" / f"{name}.svg"
        assert png.read_bytes().startswith(b"\x89PNG") and "<svg" in svg.read_text()


def test_the_page_stands_alone(report):
    page = (report[1] / "report.html").read_text()
    assert page.count("<figure>") == len(PLOTS) and "<h2>In short</h2>" in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page.replace("xlink:href", "href"))
    assert "<script" not in page and "@import" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert {r for r in re.findall(r'href="#([^"]+)"', page)} <= set(ids)


def test_the_papers_figures_stand_beside_those_of_its_releases(report, tmp_path):
    body = json.loads((report[1] / "report.json").read_text())
    for arm in body["arms"]:
        arm["sets"]["gsm8k"] = arm["sets"].pop("math")
    body["paper"] = {"dspark-vanilla": paper.figures("deepseek-ai/dspark_qwen3_4b_block7")}
    write(body, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<th>paper</th>" in page and "<td>6.11</td>" in page  # Table 1
    assert "paper, chat" in page  # Figure 2
    assert "paper&#x27;s ECE" in page and "<td>0.082</td>" in page  # Figure 6
    assert "6.11" in eval_text(body)


def test_the_same_seed_and_file_give_the_same_figures(report, capsys):
    again = run(capsys, "eval", *ARGS, "--cutoffs", "full,threshold:0.6", "--head-off", "--json")
    body = json.loads(again.out)
    before = json.loads((report[1] / "report.json").read_text())
    for arm in (*body["arms"], *before["arms"]):
        if arm["confidence"]:
            arm["confidence"] |= {"calibrated": None, "scales": None}
    assert body["arms"] == before["arms"] and body["sets"] == before["sets"]


def test_a_finished_run_is_only_read(report, capsys):
    records = (report[1] / "rounds.jsonl").read_bytes()
    again = run(capsys, "eval", *ARGS, "--cutoffs", "full", "-o", report[1])
    assert again.code == 0 and (report[1] / "rounds.jsonl").read_bytes() == records


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--sets", "gsm9k"], "unknown data set 'gsm9k'"),
        (["--limit", -1], "--limit must be 0"),
        (["--max-tokens", 0], "--max-tokens must be 1"),
        (["--temp", -1], "temperature must be"),
        (["--paper"], "--paper sets --max-tokens"),
        (["--cutoffs", "half"], "unknown cutoff 'half'"),
        (["--cutoffs", ","], "--cutoffs is empty"),
        (["--block-sizes", "seven"], "--block-sizes 'seven'"),
        (["--drafter-bits", "5"], "quantize must be"),
        (["--data", "/nowhere"], "--data /nowhere is not a folder"),
        (["--file", "/nowhere.txt"], "cannot read prompts from /nowhere.txt"),
        (["--sets", "chat,chat"], "two data sets are called chat"),
        (["--calibration", "/nowhere.json"], "cannot read the calibration"),
        (["--out", __file__], "is a file"),
    ],
)
def test_bad_input_is_one_line(capsys, argv, word):
    assert word in run(capsys, "eval", *ARGS, *argv).refusal()


def test_a_prompt_longer_than_the_context(tmp_path, capsys, pair_of):
    room = pair_of(False).target.context_limit
    path = tmp_path / "long.txt"
    path.write_text("One two\n" + "One two three. " * room + "\n")
    refusal = run(capsys, "eval", *ARGS, "--limit", 0, "--file", path).refusal()
    assert f"long 1 has " in refusal and f"has room for {room}" in refusal  # noqa: F541
    kept = run(capsys, "eval", *ARGS, "--limit", 0, "--file", path, "--skip-long", "--json")
    assert json.loads(kept.out)["prompts"] == 1 and "left out 1 prompts" in kept.err


def test_a_folder_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    refusal = run(capsys, "eval", *ARGS, "--out", tmp_path).refusal()
    assert "is not empty and holds no rounds.jsonl" in refusal


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([1.0, 2.0], "has 2 temperatures, 7 drafts need one each"),
        ([0.0] * 7, "cannot read the calibration"),
        ({"scales": [{"heat": 1.0}] * 7}, "cannot read the calibration"),
        ({"other": []}, "cannot read the calibration"),
        (3, "cannot read the calibration"),
    ],
)
def test_calibrations_that_are_refused(tmp_path, capsys, content, word):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(content))
    assert word in run(capsys, "eval", *ARGS, "--calibration", path).refusal()
