"""What several test files need: running the command line, and editing checkpoint folders."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from dspark_mlx import cli

ROOT = Path(__file__).parents[1]
FIXTURES = Path(__file__).parent / "fixtures"
TARGET = FIXTURES / "target-qwen3"
VANILLA = FIXTURES / "dspark-vanilla"


@dataclass
class Outcome:
    """Exit code and output of one run."""

    code: int
    out: str
    err: str

    def refusal(self):
        """The one line of a user error, checked to be the only output."""
        assert self.code == 2, self
        assert self.out == "", self
        assert self.err.endswith("\n") and self.err.count("\n") == 1, self
        assert "Traceback" not in self.err and ": error: " in self.err, self
        return self.err[:-1]


def run(capsys, *argv):
    """The command line, in this process."""
    capsys.readouterr()
    try:
        code = cli.main([str(arg) for arg in argv])
    except SystemExit as error:  # argparse's way out
        code = error.code
    return Outcome(code, *capsys.readouterr())


class Case:
    """A folder to convert in, and the check that nothing but the source is in it afterwards."""

    def __init__(self, tmp_path, capsys):
        self.folder, self.source, self.out = tmp_path, tmp_path / "source", tmp_path / "out"
        self.capsys = capsys

    def refused(self, *argv, source=None):
        before = sorted(self.folder.rglob("*"))
        source = self.source if source is None else source
        line = run(self.capsys, "convert", source, "-o", self.out, *argv).refusal()
        assert sorted(self.folder.rglob("*")) == before
        assert len(line) < 1200
        return line


def environment(**changes):
    """Variables of a child process: offline, quiet, and its own idea of everything else."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "DSPARK_MLX_"))}
    fixed = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "DSPARK_MLX_BLAS": "off"}
    return keep | fixed | {"PYTHONDONTWRITEBYTECODE": "1"} | changes


def python(*argv, cwd=ROOT, stdin="", **variables):
    """A fresh interpreter with these arguments."""
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=environment(**variables),
        timeout=100,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def copy(source, folder, **config):
    """A copy of a checkpoint folder with changed config keys (None removes one)."""
    shutil.copytree(source, folder)
    edit_config(folder, **config)
    return folder


def edit_config(folder, **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def edit_tensors(folder, **changes):
    """Replace tensors of model.safetensors; `__` in a name stands for a dot, None removes."""
    path = folder / "model.safetensors"
    tensors = mx.load(str(path)) | {k.replace("__", "."): v for k, v in changes.items()}
    mx.eval(tensors)
    mx.save_safetensors(str(path), {k: v for k, v in tensors.items() if v is not None})


def quantized_target(folder, bits=8, group_size=64):
    """The fixture target as an mlx-lm folder, quantized by mlx-lm itself."""
    model, config = load_model(TARGET)
    model, config = quantize_model(model, config, group_size=group_size, bits=bits)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    for path in TARGET.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, folder)
    return folder


def behaviour(drafter, seed=0):
    """Everything a drafter says about one fixed context: logits row by row, drafts, confidence."""
    key = mx.random.key(seed)
    config, rows = drafter.config, []
    shape = (11, config.hidden_size)
    keys = mx.random.split(key, len(config.target_layer_ids))
    context = drafter.start()
    features = [mx.random.normal(shape, key=k) for k in keys]
    drafter.extend(context, features, mx.arange(5, 16))

    def pick(logits):
        rows.append(logits)
        return mx.argmax(logits, axis=-1), None

    slots = drafter.block_size
    drawn = drafter.propose(context, 15, slots, drafter.drafts_of(slots), pick)
    mx.eval(rows, drawn.tokens)
    return [*rows, drawn.tokens, *([] if drawn.confidence is None else [drawn.confidence])]


def identical(ours, theirs):
    """Whether two lists of arrays are equal to the bit."""
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and mx.array_equal(a, b).item()
        for a, b in zip(ours, theirs, strict=True)
    )
