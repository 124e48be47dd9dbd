"""The command line as people use it: prompts, options, pipes, interrupts, and one-line errors."""

import io
import json
import sys

import pytest

from dspark_mlx import __version__, cli, command, generate
from dspark_mlx.commands import generate as command_generate
from dspark_mlx.options import OptionArgs, Options
from dspark_mlx.summary import printable

from ..tools import TARGET, VANILLA, copy, run

MODEL = ["--model", TARGET, "--drafter", VANILLA]


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch, pair_of):
    """The fixture pair does not have to be read anew for each test."""
    real = command_generate.load

    def load(target, **options):
        if (target, options.get("drafter")) == (str(TARGET), str(VANILLA)):
            return pair_of("dspark-vanilla")
        return real(target, **options)

    monkeypatch.setattr(command_generate, "load", load)


def answer(capsys, *argv, tokens=8):
    outcome = run(capsys, "generate", *MODEL, "--json", "--max-tokens", tokens, *argv)
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def stdin(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


# the frame


@pytest.mark.parametrize("argv", [["--help"], ["-h"]])
def test_help_lists_the_commands(capsys, argv):
    outcome = run(capsys, *argv)
    assert outcome.code == 0 and all(name in outcome.out for name in cli.COMMANDS)


def test_no_command_shows_the_usage_and_fails(capsys):
    assert run(capsys).code == 2


def test_version(capsys):
    assert run(capsys, "--version").out == f"dspark-mlx {__version__}\n"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help(capsys, name):
    outcome = run(capsys, name, "--help")
    assert outcome.code == 0 and f"usage: dspark-mlx {name}" in outcome.out


@pytest.mark.parametrize("word", ["genrate", "--verbose", "", "\x1b[31mred"])
def test_unknown_command_is_one_line_with_the_known_ones(capsys, word):
    line = run(capsys, word).refusal()
    assert "no command" in line and ", ".join(cli.COMMANDS) in line and "\x1b" not in line


def test_options_of_the_library_and_of_the_command_line_are_one_table(pair_of):
    parser = command_generate.parser()
    known = {action.dest for action in parser._actions}
    library_only = {"logprobs", "prefill_step_size", "sampler", "logits_processors"}
    assert set(OptionArgs.__annotations__) - known == library_only
    given = command.generation_options(parser.parse_args([]))
    assert set(given) == set(OptionArgs.__annotations__) - library_only
    assert Options.of(**given) == Options()
    biased = command.generation_options(
        parser.parse_args(["--logit-bias", "5:-2", "--logit-bias", "7:1.5"])
    )
    assert biased["logit_bias"] == {5: -2.0, 7: 1.5}
    with pytest.raises(TypeError, match="unknown option temprature; known: max_tokens"):
        generate(pair_of("dspark-vanilla"), [1], temprature=1.0)


# bad values: one line each

BAD = [
    (["--max-tokens", "-2"], "max_tokens must be"),
    (["--max-tokens", "many"], "argument --max-tokens: invalid int value: 'many'"),
    (["--max-tokens", "1.5"], "argument --max-tokens: invalid int value"),
    (["--temperature", "-1"], "temperature must be"),
    (["--temperature", "nan"], "temperature must be"),
    (["--temperature", "hot"], "argument --temperature"),
    (["--top-p", "1.5"], "top_p must be"),
    (["--top-p", "-0.1"], "top_p must be"),
    (["--top-k", "-1"], "top_k must be"),
    (["--top-k", "0.5"], "argument --top-k"),
    (["--min-p", "2"], "min_p must be"),
    (["--seed", "-1"], "seed must be"),
    (["--seed", "x"], "argument --seed"),
    (["--block-size", "0"], "block_size must be"),
    (["--block-size", "9"], "block_size 9 is more than the 7 slots"),
    (["--cutoff", "treshold:0.5"], "unknown cutoff 'treshold:0.5'; known: full, fixed:N"),
    (["--cutoff", "threshold"], "as in threshold:0.6"),
    (["--cutoff", "threshold:2"], "from 0 to 1"),
    (["--cutoff", "threshold:nan"], "from 0 to 1"),
    (["--cutoff", "fixed:x"], "as in fixed:3"),
    (["--cutoff", "full:1"], "takes no value"),
    (["--cutoff", ""], "unknown cutoff ''"),
    (["--quantize", "5"], "argument --quantize: invalid choice: '5'"),
    (["--dtype", "int4"], "argument --dtype: invalid choice: 'int4'"),
    (["--raw", "--system", "be kind"], "--system needs the chat template; leave out --raw"),
    (["--raw", "--no-thinking"], "--thinking needs the chat template; leave out --raw"),
    (["--plain"], "--plain runs without a drafter; leave out --drafter"),
    (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    (["more", "words"], "unrecognized arguments: more words"),
    (["--file", "x"], "not allowed with argument -p/--prompt"),
]


@pytest.mark.parametrize(("argv", "expected"), BAD)
def test_bad_value_is_one_line(capsys, argv, expected):
    assert expected in run(capsys, "generate", *MODEL, "-p", "hello", *argv).refusal()


def test_cutoff_that_needs_what_the_drafter_lacks(capsys):
    noconf = TARGET.parent / "dspark-noconf"
    argv = ["--model", TARGET, "--drafter", noconf, "-p", "x", "--cutoff", "threshold:0.5"]
    assert "needs a confidence head" in run(capsys, "generate", *argv).refusal()


# prompts


def test_prompt_from_argument_file_and_stdin_are_the_same(capsys, monkeypatch, tmp_path):
    text = "Zwölf Boxkämpfer\njagen Viktor"
    expected = answer(capsys, "-p", text)
    path = tmp_path / "prompt"
    for content in (
        text.encode(),
        b"\xef\xbb\xbf" + text.encode(),
        text.encode().replace(b"\n", b"\r\n"),
    ):
        path.write_bytes(content)
        assert answer(capsys, "-f", path)["tokens"] == expected["tokens"]
        stdin(monkeypatch, content)
        assert answer(capsys)["tokens"] == expected["tokens"]
        stdin(monkeypatch, content)
        assert answer(capsys, "-f", "-")["tokens"] == expected["tokens"]


def test_prompts_that_are_none(capsys, monkeypatch, tmp_path):
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text(" \n")
    binary.write_bytes(b"\x89PNG\r\n\xff\xfe\x00")

    def refusal(*argv):
        return run(capsys, "generate", *MODEL, *argv).refusal()

    assert "the prompt from --prompt is empty" in refusal("-p", "")
    assert f"the prompt from {empty} is empty" in refusal("-f", empty)
    assert "is not UTF-8 text (byte 0)" in refusal("-f", binary)
    assert "No such file" in refusal("-f", tmp_path / "absent")
    assert "directory" in refusal("-f", tmp_path)
    assert "the prompt from --prompt is not UTF-8 text" in refusal("-p", "caf\udce9")
    stdin(monkeypatch, b"\xff")
    assert "the prompt from stdin is not UTF-8 text" in refusal()
    stdin(monkeypatch, b"")
    assert "the prompt from stdin is empty" in refusal()
    monkeypatch.setattr(sys, "stdin", None)
    assert "give --prompt TEXT, --file FILE, or pipe one in" in refusal()


def test_raw_skips_the_template_and_system_goes_through_it(capsys, tmp_path):
    folder = copy(TARGET, tmp_path / "target")
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}"
    (folder / "chat_template.jinja").write_text(template)

    def prompt_tokens(*argv):
        argv = ["--model", folder, "--plain", "--json", "--max-tokens", 1, "-p", "hello", *argv]
        return json.loads(run(capsys, "generate", *argv).out)["stats"]["prompt_tokens"]

    raw, chat, system = prompt_tokens("--raw"), prompt_tokens(), prompt_tokens("--system", "Hm.")
    assert raw < chat < system


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ raise_exception('no system role') }}", "refuses these messages: no system role"),
        ("{% for", "refuses these messages"),
        (None, "has no chat template; give a plain prompt (--raw)"),
    ],
)
def test_template_that_cannot_be_applied_is_one_line(capsys, tmp_path, template, expected):
    folder = copy(TARGET, tmp_path / "target")
    path, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    path.unlink() if template is None else path.write_text(template)
    config = json.loads(settings.read_text())
    settings.write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
    argv = ["generate", "--model", folder, "--plain", "-p", "hello", "--max-tokens", 2]
    assert expected in run(capsys, *argv).refusal()
    assert run(capsys, *argv, "--raw").code == 0


@pytest.mark.parametrize("text", ["\0", "\x1b[31m", "🦀" * 50, "a" * 900, "‮abc", "\n\n.\n"])
def test_odd_prompts_are_answered(capsys, text):
    assert answer(capsys, "-p", text, "--raw", tokens=2)["finish_reason"] in ("length", "stop")


def test_prompt_beyond_the_context_and_a_huge_limit(capsys):
    line = run(capsys, "generate", *MODEL, "-p", "word " * 5000).refusal()
    assert "the prompt has" in line and "has room for 1024; shorten it" in line
    long = answer(capsys, "-p", "word " * 100, "--raw", tokens=10**12)
    assert long["stats"]["prompt_tokens"] + long["stats"]["tokens"] <= 1024


# what is printed where


def test_text_on_stdout_summary_on_stderr(capsys):
    argv = ["generate", *MODEL, "-p", "hello", "--max-tokens", 30, "--seed", 5]
    outcome = run(capsys, *argv)
    expected = answer(capsys, "-p", "hello", tokens=30)
    assert outcome.code == 0 and outcome.out.rstrip("\n") == expected["text"].rstrip("\n")
    for word in ("tok/s", "accepted", "tokens per round", "draft 1", "#", "GB at peak; seed 5"):
        assert word in outcome.err
    assert len(outcome.err.splitlines()) < 24
    quiet = run(capsys, *argv, "--quiet")
    assert (quiet.out, quiet.err) == (outcome.out, "")


def test_json_is_one_object_with_everything(capsys):
    outcome = run(capsys, "generate", *MODEL, "-p", "hello", "--json", "--profile")
    assert outcome.err == "" and outcome.out.count("\n") == 1
    found = json.loads(outcome.out)
    assert set(found) == {"text", "tokens", "finish_reason", "stats"}
    assert found["stats"]["draft_seconds"] > 0 and len(found["tokens"]) == found["stats"]["tokens"]


def test_plain_says_that_nothing_was_drafted(capsys):
    argv = ["generate", "--model", TARGET, "--plain", "-p", "hello", "--max-tokens", 30]
    assert "plain decoding" in run(capsys, *argv).err
    expected = answer(capsys, "-p", "hello", tokens=30)["tokens"]
    assert json.loads(run(capsys, *argv, "--json").out)["tokens"] == expected


def test_nothing_to_generate_is_no_error(capsys):
    outcome = run(capsys, "generate", *MODEL, "-p", "hello", "--max-tokens", 0)
    assert outcome.code == 0 and outcome.out.strip() == "" and "0 tokens" in outcome.err


def test_printable_keeps_text_and_drops_what_drives_a_terminal():
    assert printable("a\tb\nc äß 中 🦀") == "a\tb\nc äß 中 🦀"
    assert printable("\x1b]0;title\x07\x1b[2Jx\x9b31m\r\x7f\0") == "]0;title[2Jx31m"
