"""Where prompts come from, results that outlive an interruption, progress, the paper's table."""

import hashlib
import io
import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from dspark_mlx.errors import FetchError, OptionError
from dspark_mlx.measure import hub_sets, paper
from dspark_mlx.measure.datasets import built_in, from_file
from dspark_mlx.measure.hub_sets import HUB_SETS, named
from dspark_mlx.measure.identity import machine
from dspark_mlx.measure.progress import Progress, clock
from dspark_mlx.measure.store import Store, key_of


def texts(dataset):
    return [e.text for e in dataset.examples]


@pytest.mark.parametrize(
    "row",
    [
        {"turns": ["ask", "more"]}, {"prompt": "ask"}, {"question": "ask", "answer": "42"}, "ask",
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "ask"}]},
    ],
)  # fmt: skip
def test_every_known_form_of_a_row(tmp_path, row):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row) + "\n\n" + json.dumps(row) + "\n")
    found = from_file(path)
    assert (found.name, texts(found)) == ("mine", ["ask", "ask"])


def test_text_files_by_line_and_by_separator(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("\ufeffone\r\n\r\n  two  \r\n", encoding="utf-8")
    assert texts(from_file(path)) == ["one", "two"]
    path.write_text("first\nof two lines\n---\n\n---\nsecond\n")
    assert texts(from_file(path)) == ["first\nof two lines", "second"]


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.jsonl", b"", "no prompts"), ("a.txt", b" \n\n", "no prompts"),
        ("a.jsonl", b'{"turns": ["ok"]}\n{"title": "x"}\n', "line 2 has title; expected text"),
        ("a.jsonl", b"not json\n", "line 1 is not JSON"),
        ("a.jsonl", b'{"turns": []}\n', "line 1 has turns"),
        ("a.jsonl", b'{"prompt": 3}\n', "line 1 has prompt"),
        ("a.jsonl", b"[1, 2]\n", "line 1 has list"),
        ("a.txt", b"\xff\xfe\x00", "not UTF-8"), ("missing.txt", None, "No such file"),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path, name, content, word):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=word):
        from_file(tmp_path / name)


def test_a_pick_depends_on_the_seed_and_on_nothing_else():
    chat = built_in(["chat"])[0]
    assert chat.picked(None, 1) is chat and chat.picked(99, 1) is chat
    assert texts(chat.picked(3, 1)) == texts(chat.picked(3, 1)) != texts(chat.picked(3, 2))
    assert texts(chat.picked(2, 1, first=True)) == texts(chat)[:2]
    assert [e.index for e in chat.picked(2, 1, first=True).examples] == [0, 1]
    assert chat.sha256 != chat.picked(3, 1).sha256
    assert {s.name: len(s.examples) for s in built_in()} == {"chat": 9, "code": 9, "math": 9}


def put(cache, entry, content):
    """Enter a file of a data set into a hub cache, in the layout that huggingface_hub writes."""
    base = cache / f"datasets--{entry.repo.replace('/', '--')}"
    commit, digest = "0123456789abcdef0123456789abcdef01234567", hashlib.sha256(content)
    link = base / "snapshots" / commit / entry.file
    link.parent.mkdir(parents=True)
    for folder in ("refs", "blobs"):
        (base / folder).mkdir()
    (base / "refs/main").write_text(commit)
    blob = base / "blobs" / digest.hexdigest()
    blob.write_bytes(content)
    link.symlink_to(blob)
    return blob


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty hub cache, offline."""
    monkeypatch.setattr(hub_sets, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    real = hub_sets.hf_hub_download
    monkeypatch.setattr(
        hub_sets, "hf_hub_download", lambda *a, **k: real(*a, **k, cache_dir=tmp_path)
    )
    return tmp_path


def parquet(rows):
    import pyarrow
    from pyarrow.parquet import write_table

    out = io.BytesIO()
    write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue()


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("name", list(HUB_SETS))
def test_named_sets_come_from_the_hub_cache_in_deepspecs_words(hub, name):
    entry = HUB_SETS[name]
    value = ["ask", "again"] if entry.key[0] == "turns" else "ask"
    rows = [{entry.key[-1]: value, "answer": "42"}] * 2
    put(hub, entry, (parquet if entry.file.endswith("parquet") else lines)(rows))
    found = named(name)
    assert len(found.examples) == 2 and found.source == f"{entry.repo}/{entry.file}"
    asked = {
        "math": "ask\nPlease reason step by step, and put your final answer within \\boxed{}.",
        "humaneval": "Write a solution to the following problem and make sure that it passes the "
        "tests:\n```python\nask\n```",
    }
    example = found.examples[0]
    assert example.text == asked.get(example.domain, asked.get(name, "ask"))


def test_sets_that_cannot_be_had(hub, tmp_path):
    with pytest.raises(FetchError, match=r"not in the hub cache and HF_HUB_OFFLINE.*--sets built"):
        named("gsm8k")
    with pytest.raises(OptionError, match=r"unknown data set 'gsm9k'; known: .*gsm8k"):
        named("gsm9k")
    with pytest.raises(OptionError, match=r"has no gsm8k\.jsonl; it has no jsonl"):
        named("gsm8k", tmp_path)
    put(hub, HUB_SETS["math500"], b"nonsense\n")
    with pytest.raises(OptionError, match="line 1 is not JSON"):
        named("math500")
    put(hub, HUB_SETS["mbpp"], b"nonsense")
    with pytest.raises(OptionError, match="not a readable parquet file"):
        named("mbpp")


def test_without_a_network_there_is_one_line(hub, monkeypatch):
    """Online, but the hub cannot be reached: the real client, its sockets closed."""
    import socket

    def closed(*args, **kwargs):
        raise OSError("no route")

    monkeypatch.setattr(hub_sets, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client tries again
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, closed)
    with pytest.raises(FetchError, match="could not fetch the data set openai/gsm8k") as error:
        named("gsm8k")
    assert "\n" not in str(error.value)


def test_a_store_keeps_records_and_cuts_off_a_broken_line(tmp_path):
    path = tmp_path / "run" / "records.jsonl"
    with Store(path) as store:
        store.put("a", {"x": 1})
        store.put("b", {"x": 2})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "c", "x"')
    with Store(path) as store:
        assert store.get("a") == {"key": "a", "x": 1} and store.get("c") is None
        assert path.read_bytes() == whole
        store.put("c", {"x": 3})
    with Store(path) as store:
        assert [store.get(k)["x"] for k in "abc"] == [1, 2, 3]
    path.write_text("something else\n")
    with pytest.raises(OptionError, match="not a file of results"):
        Store(path)
    with Store(None) as store:
        assert store.put("a", {"x": 1})["x"] == 1


def test_keys_depend_on_every_part():
    assert key_of(a=1, b=[2]) == key_of(b=[2], a=1) != key_of(a=1, b=[3])


def test_progress_says_how_long_it_will_take(monkeypatch):
    now = iter([0.0, 20.0, 40.0, 41.0])
    monkeypatch.setattr("dspark_mlx.measure.progress.time.monotonic", lambda: next(now))
    out = io.StringIO()
    progress = Progress(3, "eval", out)
    progress.step("a 0", known=True)
    progress.step("a 1")
    progress.step("a 2")
    assert out.getvalue().splitlines() == [
        "eval 1/3 a 0", "eval 2/3 a 1, 0:40 left", "eval 3/3 a 2, 0:41 taken",
    ]  # fmt: skip
    assert (clock(59.6), clock(3725)) == ("1:00", "1:02:05")


def test_the_machine_is_named():
    found = machine()
    assert found["mlx"] and found["mlx-lm"] and found["cores"] and found["processor"]
    json.dumps(found)


def test_the_papers_figures_are_for_its_releases_only():
    own = paper.figures("deepseek-ai/dspark_qwen3_4b_block7")
    assert (own["accept_len"]["gsm8k"], own["accept_len"]["arena-hard-v2"]) == (6.11, 3.29)
    assert own["conditional"]["math"][0] == 0.905 and own["calibration"]["3"]["ece"] == 0.082
    other = paper.figures("/models/dflash_gemma4_12b_block7")
    assert other["accept_len"]["humaneval"] == 4.95 and "conditional" not in other
    assert paper.figures("dspark-smollm2-135m") is None
    # Table 1's DSpark leads everywhere, and Figure 2 gives back its domain means
    for target in ("qwen3_4b", "qwen3_8b", "qwen3_14b", "gemma4_12b"):
        columns = zip(*(paper.ACCEPT_LEN[target, m] for m in ("dspark", "dflash", "eagle3")),
                      strict=True)  # fmt: skip
        assert all(first == max(column) for first, *rest in columns for column in [[first, *rest]])
    for domain, mean in (("math", 5.567), ("code", 5.123), ("chat", 3.490)):
        survival, total = 1.0, 1.0
        for share in paper.CONDITIONAL[domain, "dspark"]:
            survival *= share
            total += survival
        assert total == pytest.approx(mean, abs=0.05)


def test_deepspecs_own_files_are_read_as_they_are(tmp_path):
    path = tmp_path / "mt-bench.jsonl"
    path.write_text(json.dumps({"turns": ["first turn", "second turn"]}) + "\n")
    found = named("mt-bench", Path(tmp_path))
    assert [(e.domain, e.text) for e in found.examples] == [("chat", "first turn")]
