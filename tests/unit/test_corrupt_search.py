"""Strange values at every key and flipped bytes: whatever is refused is refused in one line."""

import json

import numpy as np
import pytest

from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.errors import CheckpointError, UnsupportedError

from .. import packagings as pack
from .test_corrupt import FORMS, form_of, gguf_with
from .test_packagings import nested

STRANGE = [None, True, -1, 0, 2**70, 1.5, float("nan"), "x", [], [1], {}, {"a": 1}, [[]], [None]]


def paths(config, prefix=""):
    """Every dotted key of a config."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


@pytest.mark.parametrize("form", [*FORMS, "dspark-gemma4"])
def test_no_value_of_any_key_ends_in_a_traceback(tmp_path, form):
    """Every key with every strange value: read all the same, or refused in one line."""
    config, tensors = pack.native(form) if form.startswith("dspark") else form_of(form)
    folder = pack.write(tmp_path / "d", config, tensors)
    refused = 0
    for path in paths(config):
        for value in STRANGE:
            (folder / "config.json").write_text(json.dumps(nested(config, path, value)))
            try:
                open_drafter(folder).tensors.close()
            except (CheckpointError, UnsupportedError) as error:
                assert "\n" not in str(error) and len(str(error)) < 1500, (path, value)
                refused += 1
            except Exception as error:  # noqa: BLE001
                pytest.fail(f"{path} = {value!r}: {type(error).__name__} {error}")
    assert refused > 100


def test_no_flipped_byte_of_a_gguf_header_ends_in_a_traceback(tmp_path):
    path = gguf_with(tmp_path, {"tokenizer.ggml.tokens": ["t"] * 320})
    whole = path.read_bytes()
    numbers = np.random.default_rng(0)
    header = whole.index(b"conf_proj.weight") + 60
    for _ in range(600):
        place, value = int(numbers.integers(0, header)), int(numbers.integers(0, 256))
        path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            open_drafter(path).tensors.close()
        except (CheckpointError, UnsupportedError) as error:
            assert "\n" not in str(error), (place, value)
        except Exception as error:  # noqa: BLE001
            pytest.fail(f"byte {place} = {value}: {type(error).__name__} {error}")
