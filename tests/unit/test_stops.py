"""Stop strings across token and block borders, and the text around them."""

import functools
import itertools

import pytest

from dspark_mlx import ChatSession, Finished, Prefilled, Round, generate, stream
from dspark_mlx.ending import Answer
from dspark_mlx.errors import OptionError
from dspark_mlx.text import StopStrings
from tests.fakes import ByteTokenizer, ScriptedDrafter, pair_with, plain, scripts, tiny_target
from tests.tools import TARGET, VANILLA, run

BYTES = ByteTokenizer([bytes([b]) for b in range(256)])
LENGTH = 30


def cut(text, stops):
    """The answer by definition: up to the stop string that is complete first, longest first."""
    ends = [(text.index(s) + len(s), text.index(s)) for s in stops if s in text]
    return text[: min(ends)[1]] if ends else text


def streamed(text, stops, sizes):
    """What comes out of pieces of these sizes, and the stop string found."""
    filter_, out, at = StopStrings(stops), [], 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            break
        out.append(filter_.add(text[at : at + size]))
        at += size
    return "".join(out) + filter_.flush(), filter_.found, out


@pytest.mark.parametrize("stops", [("b",), ("abc",), ("aab",), ("bc", "abcd"), ("abcd", "cd", "d"),
                                   ("aaa", "aab"), ("abab",), ("zz",)])  # fmt: skip
def test_any_cut_gives_the_same_text(stops):
    """The result is a function of the text alone, however it arrives."""
    for letters in itertools.product("abcd", repeat=5):
        text = "x" + "".join(letters) + "y"
        want = cut(text, stops)
        for sizes in ((1,), (2,), (3, 1), (7,)):
            got, found, _ = streamed(text, stops, sizes)
            assert got == want, (text, stops, sizes)
            assert (found is None) == (want == text)


def test_held_back_text_is_released():
    got, found, out = streamed("so <|e and </e>", ["</end>", "<|end|>"], (1,))
    assert (got, found) == ("so <|e and </e>", None)
    assert out[:7] == ["s", "o", " ", "", "", "", "<|e "]  # as soon as it cannot be a stop


def test_stop_in_the_flushed_text():
    """An unfinished character at the end can complete a stop string too."""
    answer = Answer(BYTES, (), ["x\ufffd"], 3)
    taken = answer.take([*b"ax\xe6"])
    assert ("".join(taken.texts), answer.reason, answer.stop_string) == ("a", "stop", "x\ufffd")


def test_no_token_is_taken_after_the_end():
    answer = Answer(BYTES, {0}, ["bc"], 10)
    assert answer.take([*b"abcd"]).tokens == [*b"abc"]
    assert answer.take([*b"e"]).tokens == []
    for limit in range(5):
        answer = Answer(BYTES, {0}, [], limit)
        assert answer.take([*b"abcd"]).tokens == [*b"abcd"][:limit]
        assert answer.reason == ("length" if limit < 5 else None)


@functools.cache
def recorded():
    target = tiny_target(0)
    return target, plain(target, [7, 3, 9], LENGTH)


@pytest.mark.parametrize("script", ["oracle", "first 3 right", "first 0 right"])
def test_stop_string_anywhere_in_an_answer(script):
    """Inside a block, over its border, over many tokens: text before, nothing behind (P31)."""
    target, reference = recorded()
    drafter = ScriptedDrafter(target, scripts(reference, target.vocab_size)[script])
    pair = pair_with(target, drafter)
    text = pair.tokenizer.decode(reference.tokens)
    for begin, size in itertools.product(range(0, 20, 3), (1, 2, 5, 9)):
        stop = text[begin : begin + size]
        first, *rounds, last = stream(pair, reference.prompt, max_tokens=LENGTH, stop=stop)
        tokens = [first.token, *(t for r in rounds for t in r.tokens)]
        end = text.index(stop) + len(stop)
        assert first.text + "".join(r.text for r in rounds) == text[: text.index(stop)]
        assert tokens == reference.tokens[:end]  # one character each: the record ends with it
        assert (last.reason, last.stop_string, last.tokens) == ("stop", stop, end)
        drafter.check([*reference.prompt, *tokens])


def test_no_stop_string_found():
    target, reference = recorded()
    answer = generate(pair_with(target), reference.prompt, max_tokens=LENGTH, stop=["~~~~", "}{}{"])
    assert answer.tokens == reference.tokens
    assert answer.text == pair_with(target).tokenizer.decode(reference.tokens)
    assert answer.finish_reason == "length"


def test_every_round_with_text_shows_some():
    """Nothing is held back longer than it may be a stop string or part of a character (P37)."""
    target, reference = recorded()
    pair = pair_with(target, ScriptedDrafter(target, scripts(reference, 80)["first 2 right"]))
    for event in stream(pair, reference.prompt, max_tokens=LENGTH, stop=["\n"]):
        assert isinstance(event, Finished) or event.text


@pytest.mark.parametrize("stop", ["", [""], [5], ["a", None], 5, {"a"}])
def test_bad_stop(stop):
    with pytest.raises(OptionError, match="stop must be one or more strings, none empty"):
        generate(pair_with(recorded()[0]), [1], stop=stop)


def test_command_line(capsys):
    """--stop, more than once; the summary says what ended the answer."""
    base = ("generate", "--model", TARGET, "--drafter", VANILLA, "-p", "What is 3 + 4?", "--quiet")
    whole = run(capsys, *base).out
    assert whole == "The answer is 3 + 4 = 7.\n"
    assert run(capsys, *base, "--stop", "zzz", "--stop", " = ").out == "The answer is 3 + 4\n"
    assert "none empty" in run(capsys, *base, "--stop", "").refusal()
    biased = run(capsys, *base, "--repetition-penalty", "1.5", "--frequency-penalty", "2")
    assert biased.code == 0 and biased.out != whole
    line = run(capsys, *base, "--repetition-penalty", "-1").refusal()
    assert "repetition_penalty must be" in line and "-1" in line


def test_session_record_after_a_stop_string(pair_of):
    """The record keeps the token that completed the string; the message does not have it."""
    session = ChatSession(pair_of("dspark-vanilla"))
    [first, *rounds, last] = session.stream("What is 3 + 4?", stop="+ 4")
    assert isinstance(first, Prefilled) and all(isinstance(r, Round) for r in rounds)
    assert last.stop_string == "+ 4"
    assert session.messages[-1]["content"] == "The answer is 3 "
    assert session.pair.tokenizer.decode(session.tokens).endswith("+ 4")
