"""The command line as a process: terminals, pipes, interrupts, imports and the environment."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import dspark_mlx
from dspark_mlx import __version__, blas

from ..tools import TARGET, VANILLA, environment, python

MODEL = ["--model", TARGET, "--drafter", VANILLA]


def test_generate_on_a_terminal_and_interrupted(tmp_path):
    code = (
        "import sys; from dspark_mlx import cli, text\n"
        "text.TextStream.add = lambda self, token: '\\x1b[31mx'\n"
        "import dspark_mlx.run as r; import time; real = r.Run.round\n"
        "r.Run.round = lambda self: (time.sleep(0.05), real(self))[1]\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    ours, theirs = pty.openpty()
    argv = [*MODEL, "--raw", "-p", "The", "--max-tokens", "-1"]
    child = subprocess.Popen(
        [sys.executable, "-c", code, "generate", *map(str, argv)],
        stdout=theirs, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        env=environment(), cwd=tmp_path,
    )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 4096)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    shown += os.read(ours, 65536)
    err = child.communicate(timeout=60)[1].decode()
    os.close(ours)
    assert child.returncode == 130, err
    assert b"[31mx[31mx" in shown and b"\x1b" not in shown
    assert "Traceback" not in err and "ended by interrupted" in err and "tok/s" in err
    assert "seed None" not in err and "0.00 GB" not in err


PIPES = [
    ["models"],
    ["--help"],
    ["generate", *map(str, MODEL), "-p", "hello", "--max-tokens", "200"],
]


@pytest.mark.parametrize("argv", PIPES, ids=lambda argv: " ".join(argv[:2])[:20])
def test_a_reader_that_goes_away_is_no_traceback(argv, tmp_path):
    variables = environment(DSPARK_MLX_HOME=str(tmp_path), HF_HUB_CACHE=str(tmp_path))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "dspark_mlx", *argv],
        stdout=write, stderr=subprocess.PIPE, env=variables, cwd=tmp_path, check=False,
        stdin=subprocess.DEVNULL, timeout=100,
    )  # fmt: skip
    os.close(write)
    assert done.returncode in (0, 1) and done.stderr == b""


HYGIENE = """
import sys
import dspark_mlx, dspark_mlx.cli, dspark_mlx.command, dspark_mlx.errors
heavy = sorted(m for m in sys.modules if m.split(".")[0] in ("mlx", "mlx_lm", "textual", "torch"))
assert not heavy, heavy
from types import FunctionType, ModuleType
from dspark_mlx import stream_generate, load, stream, generate
import dspark_mlx.commands.generate, dspark_mlx.convert, dspark_mlx.run, dspark_mlx.loading
for name in dspark_mlx.__all__:
    assert not isinstance(getattr(dspark_mlx, name), ModuleType), name
    assert getattr(dspark_mlx, name) is getattr(dspark_mlx, name), name
assert isinstance(load, FunctionType) and dspark_mlx.load is load
assert sorted(dspark_mlx.__all__) == dspark_mlx.__all__
heavy = sorted(m for m in sys.modules if m.split(".")[0] in ("textual", "torch"))
assert not heavy, heavy
"""


def test_importing_is_light_and_no_submodule_hides_a_public_name(tmp_path):
    done = python("-c", HYGIENE, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    modules = {path.stem for path in (TARGET.parents[2] / "dspark_mlx").iterdir()}
    assert not modules & set(dspark_mlx.__all__)


def test_running_as_a_module_from_elsewhere(tmp_path):
    done = python("-m", "dspark_mlx", "--version", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, f"dspark-mlx {__version__}\n", "")
    assert "no command" in python("-m", "dspark_mlx", "x", cwd=tmp_path).refusal()


def test_fast_blas_can_be_switched_off_and_a_wrong_one_is_named(tmp_path):
    show = "from dspark_mlx import blas; print(blas.active())"
    assert python("-c", show, cwd=tmp_path, DSPARK_MLX_BLAS="off").out == "None\n"
    if sys.platform.startswith("linux"):
        wrong = {"DSPARK_MLX_BLAS": "/nowhere/lib.so"}
        done = python("-m", "dspark_mlx", "generate", "-p", "x", cwd=tmp_path, **wrong)
        assert "DSPARK_MLX_BLAS=/nowhere/lib.so does not load" in done.refusal()
        late = "import mlx.core; from dspark_mlx import blas; blas.advise(); print(blas.active())"
        done = python("-c", late, cwd=tmp_path, DSPARK_MLX_BLAS="")
        assert done.out == "None\n" and "import dspark_mlx before mlx" in done.err
    assert blas.VARIABLE == "DSPARK_MLX_BLAS"
