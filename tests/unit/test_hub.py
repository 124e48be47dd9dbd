"""Hub names without a hub: a cache made by hand, the network switched off or guarded."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from dspark_mlx import hub
from dspark_mlx.errors import CheckpointError, FetchError
from dspark_mlx.hub import complete
from dspark_mlx.registry import MODELS, entry_of

from .. import gguf_writer
from .. import packagings as pack
from ..tools import FIXTURES, TARGET, VANILLA, copy, python, quantized_target, run

pytestmark = pytest.mark.xdist_group("hub")  # one process makes the cache, once

COMMIT = "0123456789abcdef0123456789abcdef01234567"
QWEN, GEMMA = MODELS["qwen3-4b"], MODELS["gemma4-12b"]
DFLASH, EAGLE3 = "deepseek-ai/dflash_qwen3_4b_block7", "deepseek-ai/eagle3_qwen3_4b_ttt7"

# runs command lines in one process, with every way to the network counted and closed
GUARDED = """
import contextlib, io, json, socket, sys
attempts = []

def closed(*args, **kwargs):
    attempts.append(repr(args)[:80])
    raise OSError("this test has no network")

socket.socket.connect = socket.socket.connect_ex = closed
socket.getaddrinfo = socket.create_connection = closed
from dspark_mlx import cli

results = []
for argv in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    before = len(attempts)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(argv)
    results.append([code, out.getvalue(), err.getvalue(), len(attempts) - before])
print(json.dumps(results))
"""


def put(cache, repo, source):
    """Enter a folder into a hub cache, in the layout that huggingface_hub writes."""
    base = cache / f"models--{repo.replace('/', '--')}"
    snapshot = base / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for folder in ("refs", "blobs"):
        (base / folder).mkdir()
    (base / "refs/main").write_text(COMMIT)
    for number, path in enumerate(sorted(source.iterdir())):
        blob = base / "blobs" / f"{number:040x}"
        shutil.copy(path, blob)
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Tiny weights under the real names: a pair, and one whose drafter is of another form."""
    work = tmp_path_factory.mktemp("hub")
    cache = work / "cache"
    put(cache, QWEN.target, quantized_target(work / "target"))
    put(cache, QWEN.drafter, VANILLA)
    put(cache, GEMMA.target, FIXTURES / "target-gemma4")
    put(cache, GEMMA.drafter, FIXTURES / "dspark-gemma4")
    put(cache, DFLASH, FIXTURES / "dflash-deepspec")
    put(cache, EAGLE3, FIXTURES / "eagle3")
    unknown = copy(VANILLA, work / "other", architectures=["Gemma9DSparkModel"])
    put(cache, "someone/other-form", unknown)
    config, tensors = pack.native()
    gguf_writer.gguf(work / "gguf", config, tensors)
    put(cache, "someone/drafter-GGUF", work / "gguf")
    shutil.copy(next((work / "gguf").iterdir()), work / "gguf" / "b.gguf")
    put(cache, "someone/drafters-GGUF", work / "gguf")
    for repo in ("someone/broken-off", MODELS["qwen3-14b"].drafter):
        sharded = put(cache, repo, FIXTURES / "dspark-vanilla-sharded")
        (sharded / "model-00002-of-00002.safetensors").unlink()
    return cache


def guarded(cache, *argvs, **variables):
    variables = {"HF_HUB_CACHE": str(cache), "DSPARK_MLX_HOME": str(cache / "home"), **variables}
    done = python("-c", GUARDED, json.dumps([list(map(str, argv)) for argv in argvs]), **variables)
    assert done.code == 0, done
    return json.loads(done.out)


# whole blocks: what a policy decides by the clock is no matter here
ONE = ["generate", "-p", "One two", "--json", "--max-tokens", 24, "--cutoff", "full", "--model"]
RUNS = {  # name -> arguments; those after "models" fail
    "known": [*ONE, "qwen3-4b"],
    "plain": [*ONE, "qwen3-4b", "--plain"],
    "by id": [*ONE, QWEN.target],
    "dflash": [*ONE, "qwen3-4b", "--drafter", DFLASH],
    "eagle3": [*ONE, "qwen3-4b", "--drafter", EAGLE3],
    "gguf": [*ONE, "qwen3-4b", "--drafter", "someone/drafter-GGUF"],
    "one gguf": [*ONE, "qwen3-4b", "--drafter", "someone/drafters-GGUF/b.gguf"],
    "gemma4": [*ONE, "gemma4-12b"],
    "gemma4, plain": [*ONE, "gemma4-12b", "--plain"],
    "convert": ["convert", QWEN.drafter, "--target", QWEN.target, "--overwrite", "-o", "OUT",
                "--no-selftest"],
    "table": ["models"],
    "models": ["models", "--json"],
    "other form": [*ONE, "qwen3-4b", "--drafter", "someone/other-form"],
    "no such gguf": [*ONE, "qwen3-4b", "--drafter", "someone/drafters-GGUF/c.gguf"],
    "not cached": [*ONE, "qwen3-8b"],
    "absent": [*ONE, "someone/absent", "--plain"],
    "broken off": ["convert", "someone/broken-off", "-o", "NONE"],
    "typo": [*ONE, "qwen3-4B"],
    "no id": [*ONE, "a/b/c"],
    "bad id": [*ONE, "bad id!/x", "--plain"],
}  # fmt: skip


@pytest.fixture(scope="module")
def results(cache, tmp_path_factory):
    """Every line of RUNS, with the hub allowed but out of reach, and with it forbidden."""
    out = tmp_path_factory.mktemp("converted")
    places = {"OUT": out / "out", "NONE": out / "none"}
    lines = [[places.get(word, word) for word in argv] for argv in RUNS.values()]
    runs = {mode: guarded(cache, *lines, HF_HUB_OFFLINE=mode) for mode in ("0", "1")}
    assert [path.name for path in out.iterdir()] == ["out"]
    config = json.loads((out / "out/config.json").read_text())
    assert config["source"]["name"] == QWEN.drafter  # a hub id is kept, the cache's path is not
    return {mode: dict(zip(RUNS, found, strict=True)) for mode, found in runs.items()}


def test_every_name_states_its_repositories_and_precision():
    for name in ("qwen3-4b", "qwen3-8b", "qwen3-14b", "gemma4-12b"):
        entry = MODELS[name]
        assert entry.target.startswith("mlx-community/") and entry.target.endswith("-8bit")
        assert entry.precision == "8-bit" and entry.thinking is False
        size = name.replace("-", "_")
        assert entry.drafter == f"deepseek-ai/dspark_{size}_block7"
        assert entry_of(name) is entry_of(entry.target) is entry
    assert entry_of("mlx-community/something-else") is None


def test_known_name_runs_end_to_end_from_the_cache_alone(cache, tmp_path, results):
    done = python(
        *("-m", "dspark_mlx", *RUNS["known"]),
        cwd=tmp_path,
        HF_HOME=str(cache.parent / "nothing"),
        HF_HUB_CACHE=str(cache),
    )
    assert (done.code, done.err) == (0, ""), done
    answer = json.loads(done.out)
    assert answer["finish_reason"] in ("length", "stop") and answer["text"]
    assert answer["stats"]["proposed"] > 0
    for mode in ("0", "1"):
        by_name, plain, by_id = (
            json.loads(results[mode][name][1]) for name in ("known", "plain", "by id")
        )
        assert by_name["tokens"] == plain["tokens"] == by_id["tokens"] == answer["tokens"]
        for drafter in ("dflash", "eagle3", "gguf", "one gguf"):
            other = json.loads(results[mode][drafter][1])
            assert other["tokens"] == plain["tokens"] and other["stats"]["accepted"] > 0, drafter
        gemma, alone = (json.loads(results[mode][n][1]) for n in ("gemma4", "gemma4, plain"))
        assert gemma["tokens"] == alone["tokens"] and gemma["stats"]["accepted"] > 0
        assert plain["stats"]["proposed"] == 0
        assert by_id["stats"]["accepted"] == by_name["stats"]["accepted"]


@pytest.mark.parametrize("mode", ["0", "1"])
@pytest.mark.parametrize("name", list(RUNS))
def test_network_is_asked_only_for_what_is_not_there(results, mode, name):
    code, out, err, attempts = results[mode][name]
    good = list(RUNS).index(name) <= list(RUNS).index("models")
    assert code == (0 if good else 2), (out, err)
    asks = ("not cached", "absent", "broken off", "no such gguf")
    assert (attempts > 0) == (mode == "0" and name in asks)
    if not good:
        assert out == "" and err.count("\n") == 1 and len(err) < 700


def test_what_the_refusals_say(results):
    online, offline = ({k: v[2] for k, v in results[mode].items()} for mode in ("0", "1"))
    for said in (online, offline):
        assert "Gemma9DSparkModel" in said["other form"]
        assert "c.gguf" in said["no such gguf"] or "could not fetch" in said["no such gguf"]
        assert "neither a folder nor a hub id" in said["typo"] and "qwen3-4b" in said["typo"]
        assert "neither a folder nor a hub id" in said["no id"]
        assert "not a valid hub id" in said["bad id"]
        assert "model-00002-of-00002.safetensors, which is missing" in said["broken off"]
    for name, repo in (("not cached", MODELS["qwen3-8b"].target), ("absent", "someone/absent")):
        assert f"could not fetch {repo}" in online[name] and "check the network" in online[name]
        assert f"{repo} is not in the hub cache and HF_HUB_OFFLINE is set" in offline[name]
        assert f"`hf download {repo}`" in offline[name]


def test_models_shows_what_is_on_disk(results):
    table, data = (results["0"][name][1] for name in ("table", "models"))
    rows = {row["name"]: row for row in json.loads(data)["models"]}
    assert set(rows) == set(MODELS)
    assert rows["qwen3-4b"]["target_disk"].startswith("on disk (")
    assert rows["qwen3-4b"]["drafter_disk"].startswith("on disk (")
    assert rows["qwen3-14b"]["drafter_disk"].startswith("partly on disk (")
    assert rows["qwen3-14b"]["target_disk"] == "not on disk"
    assert rows["smollm2-135m"]["target_disk"] == "not on disk"
    assert all(name in table for name in MODELS)
    assert f"{QWEN.target} (8-bit), on disk" in table


def test_names_that_are_not_text_for_a_path(capsys):
    for name in ("", " ", "~nobody-here", "x" * 5000, "a/" + "b" * 5000, "nul\0byte"):
        outcome = run(capsys, "generate", "-p", "x", "--plain", "--model", name)
        assert len(outcome.refusal()) < 1100, outcome


@pytest.fixture
def hub_of(monkeypatch, tmp_path):
    """A hub whose repository has some files; what is asked for appears in a snapshot."""

    def make(*files):
        asked, snapshot = [], tmp_path / "snapshot"

        def snapshot_download(repo, allow_patterns, local_files_only=False):
            if local_files_only:
                raise LocalEntryNotFoundError("nothing cached")
            asked.append(allow_patterns)
            snapshot.mkdir(exist_ok=True)
            for name in files:
                if any(Path(name).match(pattern) for pattern in allow_patterns):
                    (snapshot / name).write_bytes(b"")
            return str(snapshot)

        monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
        monkeypatch.setattr(hub, "list_repo_files", lambda repo: list(files))
        return asked, snapshot

    return make


def test_a_repository_of_one_gguf_file_is_that_file(hub_of):
    asked, snapshot = hub_of("README.md", "drafter-bf16.gguf")
    assert hub.drafter_folder("someone/gguf") == snapshot / "drafter-bf16.gguf"
    assert asked[-1] == ["drafter-bf16.gguf"]


def test_several_gguf_files_are_named_and_none_is_fetched(hub_of):
    asked, _ = hub_of("a-f32.gguf", "a-q4.gguf")
    with pytest.raises(CheckpointError, match=r"a-f32.gguf, a-q4.gguf; name one \(some/a/a-f32"):
        hub.drafter_folder("some/a")
    assert not any("gguf" in pattern for patterns in asked for pattern in patterns)
    assert hub.drafter_folder("some/a/a-q4.gguf").name == "a-q4.gguf"
    with pytest.raises(FetchError, match=r"no file b\.gguf"):
        hub.drafter_folder("some/a/b.gguf")


def test_gguf_files_beside_a_config_are_left_alone(hub_of):
    _, snapshot = hub_of("config.json", "model.safetensors", "a.gguf", "b.gguf")
    assert hub.drafter_folder("some/a") == snapshot
    assert not list(snapshot.glob("*.gguf"))


def test_several_gguf_files_in_a_folder_are_named(tmp_path, capsys):
    config, tensors = pack.native()
    folder = gguf_writer.gguf(tmp_path / "g", config, tensors)
    folder = folder if folder.is_dir() else folder.parent
    one = next(folder.glob("*.gguf"))
    assert run(capsys, "inspect", folder).code == 0
    shutil.copy(one, folder / "z.gguf")
    line = run(capsys, "inspect", folder).refusal()
    assert "holds several GGUF files" in line and one.name in line and "z.gguf" in line
    assert run(capsys, "inspect", folder / "z.gguf").code == 0


def test_complete(tmp_path):
    assert complete(VANILLA) and complete(FIXTURES / "dspark-vanilla-bin") and complete(TARGET)
    folder = shutil.copytree(FIXTURES / "dspark-vanilla-sharded", tmp_path / "s")
    assert complete(folder)
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "absent.bin"}}')
    assert complete(folder)  # the other form is whole
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert not complete(folder)
    for content in ("", "[]", '{"weight_map": 3}'):
        (folder / "model.safetensors.index.json").write_text(content)
        assert not complete(folder)
    (folder / "config.json").unlink()
    assert not complete(folder) and not complete(tmp_path / "absent")
