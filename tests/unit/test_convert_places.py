"""Sources, destinations and ends in mid-write: nothing is lost, nothing is left behind."""

import os
from pathlib import Path

import mlx.core as mx
import pytest

from dspark_mlx.convert import write

from ..tools import TARGET, VANILLA, Case, copy, python, run


@pytest.fixture
def case(tmp_path, capsys):
    return Case(tmp_path, capsys)


def test_source_that_is_not_there_or_no_drafter(case):
    assert "neither a folder nor a hub id" in case.refused(source=case.folder / "none")
    assert "neither a folder nor a hub id" in case.refused(source="")
    assert "neither a folder nor a hub id" in case.refused(source="x" * 5000)
    assert "neither a folder nor a hub id" in case.refused(source="~nobody-here/x")
    assert "known packaging" in case.refused(source=TARGET)
    assert "is not a folder" in case.refused(source=VANILLA / "model.safetensors")


def test_a_converted_folder_is_not_converted_again(case):
    write.convert(VANILLA, case.source)
    assert "is already converted; load it as it is" in case.refused()


def test_target_that_does_not_fit(case):
    copy(TARGET, case.folder / "target")
    copy(VANILLA, case.source, num_target_layers=9)
    line = case.refused("--target", case.folder / "target")
    assert "number of target layers 8 in the target, 9 in the drafter" in line
    os.truncate(case.folder / "target/model.safetensors", 500_000)
    copy(VANILLA, case.folder / "good")
    line = case.refused("--target", case.folder / "target", source=case.folder / "good")
    assert "cannot be loaded as a target" in line


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--q-bits", "5", "-q"], "argument --q-bits: invalid choice: 5"),
        (["--q-group-size", "48", "-q"], "argument --q-group-size: invalid choice: 48"),
        (["--q-bits", "4"], "--q-bits, --q-...-bits and --q-group-size need -q"),
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["--share-embeddings"], "--target"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_option_that_would_be_ignored_or_is_unknown(case, argv, expected):
    assert expected in case.refused(*argv, source=VANILLA)


def test_output_is_required(capsys):
    assert "-o/--output" in run(capsys, "convert", VANILLA).refusal()


def test_destination_that_is_a_file_or_lies_in_one(case):
    file = case.folder / "file"
    file.write_text("keep me")
    case.out = file
    assert "is not a folder" in case.refused("--overwrite", source=VANILLA)
    case.out = file / "out"
    assert "could not write" in case.refused(source=VANILLA)
    assert file.read_text() == "keep me"
    case.out = case.folder / "link"
    case.out.symlink_to(case.folder / "elsewhere")
    assert "is not a folder" in case.refused("--overwrite", source=VANILLA)


def test_overwriting_never_takes_away_what_is_read_or_stood_in(case, monkeypatch):
    copy(VANILLA, case.source)
    copy(TARGET, case.folder / "target")
    link = case.folder / "link"
    link.symlink_to(case.folder)
    for out in (case.source, case.folder, link / "source"):
        case.out = out
        assert "holds, the source" in case.refused("--overwrite")
    case.out = case.folder / "target"
    assert "the target" in case.refused("--overwrite", "--target", case.out)
    here = case.folder / "here/below"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    for place in (".", "", ".."):
        case.out = place
        assert "the working folder" in case.refused("--overwrite")


def test_destination_that_may_not_be_written(case):
    if os.geteuid():
        case.out = case.folder / "closed/out"
        case.out.parent.mkdir(mode=0o555)
    else:
        case.out = Path("/proc/none/out") if Path("/proc").exists() else Path("/dev/none/out")
    assert f"could not write {case.out}" in case.refused(source=VANILLA)


FULL = """
import resource, sys
from dspark_mlx import cli
for limit in (1, 100_000, 586_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    assert cli.main(sys.argv[1:]) == 2
"""


def test_disk_that_takes_no_more(tmp_path):
    done = python("-c", FULL, "convert", VANILLA, "-o", tmp_path / "new/out")
    assert (done.code, done.out) == (0, "")
    lines = done.err.splitlines()
    assert len(lines) == 3, done
    for line in lines:
        assert f"error: could not write {tmp_path / 'new/out'}" in line
        assert line.endswith("(is the disk full?); nothing was left behind")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from dspark_mlx import atomic, cli
from dspark_mlx.convert import write

def half(path, weights, metadata):
    open(path, "wb").write(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)

def aside(work, target):
    target.rename(target.with_name(f".{target.name}.old-{os.getpid()}-"))
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "write":
    write.mx.save_safetensors = half
else:
    atomic._swap = aside
cli.main(sys.argv[2:])
"""


def test_kill_in_mid_write_leaves_no_folder_and_is_cleared_up_later(tmp_path, capsys):
    out = tmp_path / "out"
    done = python("-c", KILLED, "write", "convert", VANILLA, "-o", out)
    assert (done.code, done.out) == (-9, "")
    [leftover] = tmp_path.iterdir()
    assert leftover.name.startswith(".out.partial-")
    assert run(capsys, "convert", VANILLA, "-o", out).code == 0
    assert list(tmp_path.iterdir()) == [out]


def test_kill_between_the_two_renames_does_not_lose_the_old_folder(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("precious")
    done = python("-c", KILLED, "swap", "convert", VANILLA, "-o", out, "--overwrite")
    assert done.code == -9 and not out.exists()
    assert "not empty" in run(capsys, "convert", VANILLA, "-o", out).refusal()
    assert (out / "old").read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


def test_leftovers_of_a_living_process_and_other_names_are_left_alone(tmp_path, capsys):
    mine = tmp_path / f".out.partial-{os.getppid()}-abc"
    other = tmp_path / ".outside.partial-999999999-abc"
    for folder in (mine, other):
        folder.mkdir()
    assert run(capsys, "convert", VANILLA, "-o", tmp_path / "out").code == 0
    assert sorted(tmp_path.iterdir()) == sorted([mine, other, tmp_path / "out"])


def test_interrupt_in_mid_write_leaves_everything_as_it_was(tmp_path, capsys, monkeypatch):
    out = tmp_path / "a/out"
    real = mx.save_safetensors

    def interrupted(*args):
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(write.mx, "save_safetensors", interrupted)
    outcome = run(capsys, "convert", VANILLA, "-o", out)
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []
    out.mkdir(parents=True)
    (out / "old").write_text("old")
    assert run(capsys, "convert", VANILLA, "-o", out, "--overwrite").code == 130
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert [p.name for p in out.iterdir()] == ["old"]


def test_a_disk_that_returns_other_bytes_is_noticed(tmp_path, capsys, monkeypatch):
    real = mx.save_safetensors

    def lossy(path, weights, metadata):
        weights = {**weights, "norm.weight": weights["norm.weight"] + 1}
        real(path, weights, metadata)

    monkeypatch.setattr(write.mx, "save_safetensors", lossy)
    line = run(capsys, "convert", VANILLA, "-o", tmp_path / "out").refusal()
    assert "does not read back as it was written" in line
    assert list(tmp_path.iterdir()) == []
