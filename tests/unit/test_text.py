"""Streamed text joins to the decode of the whole, whatever the cuts (P35, P37, P38)."""

import itertools
import random

import numpy as np
import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer

from dspark_mlx import generate, stream
from dspark_mlx.text import TextStream
from tests.fakes import ByteTokenizer, ScriptedDrafter, pair_with, plain, scripts
from tests.markov import markov_target

TEXT = "ďábel 漢字 👩‍👩‍👧 ok"
MARK = "\ufffd"
BYTES = ByteTokenizer([bytes([b]) for b in range(256)])


@pytest.fixture(scope="module")
def fixture_tokenizer(fixtures):
    return load_tokenizer(fixtures / "target-qwen3")


def pieces_of(tokenizer, ids):
    """What `add` gave per token, and what `flush` gave."""
    text = TextStream(tokenizer)
    return [text.add(i) for i in ids], text.flush()


def check(tokenizer, ids):
    pieces, rest = pieces_of(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(list(ids))
    return pieces, rest


class Cut:
    """A tokenizer whose tokens are given slices of one text's bytes."""

    def __init__(self, data, sizes):
        ends = list(itertools.accumulate(sizes))
        self.parts = [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]

    def decode(self, ids):
        return b"".join(self.parts[i] for i in ids).decode("utf-8", errors="replace")


def test_byte_by_byte():
    pieces, rest = check(BYTES, TEXT.encode())
    assert rest == ""
    assert not any(MARK in piece for piece in pieces)
    assert [p for p in pieces if p] == list(TEXT)


@pytest.mark.parametrize("size", range(1, 8))
def test_even_cuts(size):
    """Tokens of 1 to 7 bytes, from every starting point."""
    data = TEXT.encode()
    for shift in range(size):
        sizes = [shift] * bool(shift) + [size] * ((len(data) - shift) // size)
        tokenizer = Cut(data, sizes)
        pieces, rest = check(tokenizer, range(len(tokenizer.parts)))
        assert (rest, "".join(pieces)) == ("", TEXT)


def test_any_cuts():
    """All ways to cut the hardest part, and a thousand random ways to cut the whole."""
    data = "á漢👩‍".encode()[:11]
    for cuts in itertools.product((0, 1), repeat=len(data) - 1):
        sizes, run = [], 1
        for cut in cuts:
            if cut:
                sizes.append(run)
                run = 0
            run += 1
        tokenizer = Cut(data, sizes)
        check(tokenizer, range(len(tokenizer.parts)))
    numbers = random.Random(5)
    for _ in range(1000):
        data, sizes = TEXT.encode(), []
        while sum(sizes) < len(data) - 7:
            sizes.append(numbers.randint(1, 7))
        tokenizer = Cut(data, sizes)
        pieces, rest = check(tokenizer, range(len(tokenizer.parts)))
        assert rest == "" and MARK not in "".join(pieces)


@pytest.mark.parametrize("bad", [b"\xff", b"\xe6\xbc", b"\x80\x80", b"\xf0\x9f\x91", b"\xc3\xc3"])
def test_invalid_bytes_in_the_middle(bad):
    """They become what a whole decode makes of them, and the rest stays intact."""
    pieces, rest = check(BYTES, "ab ď".encode() + bad + " ok 漢".encode())
    assert "".join(pieces).startswith("ab ď" + MARK)
    assert "".join(pieces).endswith(" ok 漢")
    assert rest == ""


def test_unfinished_character_at_the_end():
    pieces, rest = check(BYTES, "ok 漢".encode()[:-1])
    assert ("".join(pieces), rest) == ("ok ", MARK)
    text = TextStream(BYTES)
    assert (text.flush(), text.flush()) == ("", "")
    text.add(0xE6)
    assert (text.flush(), text.flush()) == (MARK, "")


def test_random_bytes():
    """2000 random strings, valid or not, with the fuzz leaning to broken sequences."""
    numbers = random.Random(7)
    lead = [0xC3, 0xE6, 0xF0, 0x9F, 0x80, 0xBF, 0xFF, 0xED, 0xA0, 0x20, 0x61, 0xE0, 0xF4, 0x90]
    for number in range(2000):
        if number % 2:
            ids = numbers.choices(lead, k=numbers.randint(1, 20))
        else:
            ids = [numbers.randrange(256) for _ in range(numbers.randint(1, 20))]
        check(BYTES, ids)


@pytest.mark.parametrize("text", [" leading x", "  two", "\n\nx", "   ", " a  b ", "\tx\r\n"])
def test_leading_space_is_kept(text, fixture_tokenizer):
    pieces, rest = check(BYTES, text.encode())
    assert "".join(pieces) + rest == text
    ids = fixture_tokenizer.encode(text, add_special_tokens=False)
    pieces, rest = check(fixture_tokenizer, ids)
    assert "".join(pieces) + rest == text


class Metaspace:
    """SentencePiece manners: a mark for the space, and the first space of any decode is eaten."""

    parts = ("\u2581a", "b", "\u2581", "\u2581\u2581c", "d\u2581", "\n", "")

    def decode(self, ids):
        text = "".join(self.parts[i] for i in ids).replace("\u2581", " ")
        return text.removeprefix(" ")


def test_first_space_of_a_decode_is_eaten():
    """Every string of up to five such tokens."""
    for length in range(1, 6):
        for ids in itertools.product(range(7), repeat=length):
            check(Metaspace(), ids)


class Tidying:
    """Removes spaces before punctuation, as Hugging Face's clean-up does."""

    def decode(self, ids):
        return "".join(("Hi", " ", ".", "x", " n't")[i] for i in ids).replace(" .", ".")


def test_tidying_loses_nothing_but_spaces():
    for ids in itertools.product(range(5), repeat=5):
        pieces, rest = pieces_of(Tidying(), ids)
        whole = Tidying().decode(ids)
        assert ("".join(pieces) + rest).replace(" ", "") == whole.replace(" ", "")


def test_no_silence():
    """Text without spaces comes as it is made, at least a piece per block of 8."""
    pieces, rest = check(BYTES, b"abcdefghij" * 6)
    assert rest == ""
    assert all(any(pieces[k : k + 8]) for k in range(0, 60, 8))
    assert all(pieces)


def test_tokens_that_decode_to_nothing():
    tokenizer = ByteTokenizer([b"", b"a", b" b", b"\xe6", b"\xbc\xa2"])
    for ids in itertools.product(range(5), repeat=5):
        check(tokenizer, ids)
    pieces, rest = pieces_of(tokenizer, [0] * 20)
    assert (set(pieces), rest) == ({""}, "")


def test_fixture_tokenizer(fixture_tokenizer):
    """The real byte-level tokenizer: the hard text, and random ids of its vocabulary."""
    ids = fixture_tokenizer.encode(TEXT, add_special_tokens=False)
    assert len(ids) > 20
    pieces, rest = check(fixture_tokenizer, ids)
    assert ("".join(pieces), rest) == (TEXT, "")
    numbers = random.Random(3)
    for _ in range(300):
        check(fixture_tokenizer, [numbers.randrange(320) for _ in range(numbers.randint(1, 16))])


def test_mark_as_a_real_character():
    """A text that holds U+FFFD itself is not held back for ever."""
    pieces, rest = check(BYTES, f"a{MARK}b{MARK}".encode())
    assert "".join(pieces) == f"a{MARK}b"
    assert rest == MARK


def test_work_per_token_does_not_grow():
    """Each decode sees a short window, not the whole answer."""
    longest = 0

    class Counting(ByteTokenizer):
        def decode(self, ids):
            nonlocal longest
            longest = max(longest, len(ids))
            return super().decode(ids)

    pieces_of(Counting(BYTES.pieces), TEXT.encode() * 20)
    assert longest <= 16


@pytest.mark.parametrize("block", [1, 3, 7])
def test_text_of_rounds(block):
    """Events carry the text that their tokens complete; the last one flushes what is left."""
    data = TEXT.encode()
    alphabet = sorted(set(data))
    cycle = [alphabet.index(b) for b in data]
    table = np_table(cycle, len(alphabet))
    target = markov_target(table)
    pieces = [bytes([b]) for b in alphabet]
    reference = plain(target, cycle[:2], len(data) - 2)
    wanted = b"".join(pieces[t] for t in reference.tokens)
    for script in ("oracle", "first 2 right"):
        drafter = ScriptedDrafter(target, scripts(reference, len(alphabet))[script], block=block)
        pair = pair_with(target, drafter, pieces=pieces)
        for limit in range(1, len(data) - 1):
            answer = generate(pair, cycle[:2], max_tokens=limit)
            assert answer.text == wanted[:limit].decode(errors="replace")
    *_, last, _ = stream(pair, cycle[:2], max_tokens=len(data) - 2)
    assert len(last.texts) == len(last.tokens)


def np_table(cycle, vocab):
    """Logits that lead from each pair of neighbours to one that followed it."""
    table = np.zeros((vocab,) * 3)
    for a, b, c in zip(cycle, cycle[1:], cycle[2:], strict=False):
        table[a, b] = 0
        table[a, b, c] = 9
    return table
