"""What a session keeps beyond one turn: forks, files, shared prefixes, rewritten history."""

import copy
import dataclasses
import gc
import json
import threading

import mlx.core as mx
import pytest
from mlx_lm.models.cache import load_prompt_cache

from dspark_mlx import ChatSession, Prefilled
from dspark_mlx.errors import CheckpointError, OptionError, PairError, SessionError, UserError
from dspark_mlx.fingerprint import fingerprint, fingerprints
from tests.chats import (
    FIRST,
    PAIRS,
    SECOND,
    THIRD,
    TURN,
    CharTokenizer,
    check_turn,
    fresh,
    pair_named,
)

EVERY = pytest.mark.parametrize("name", PAIRS)
BOTH = pytest.mark.parametrize("name", ["qwen3", "gemma4"])
# keeps only what follows "=" of earlier answers, and opens every answer with three words
FORGETS = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n"
    "{% if m['role'] == 'assistant' %}{{ m['content'].split('=')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\nThe answer is{% endif %}"
)
ANY_ROLE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n"
    "{% endfor %}<|assistant|>\n"
)
STRICT = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}{% endfor %}<|assistant|>\n"
)


def with_template(pair, template):
    """The pair with another chat template."""
    tokenizer = copy.copy(pair.tokenizer)
    object.__setattr__(tokenizer, "_tokenizer", copy.deepcopy(pair.tokenizer._tokenizer))
    tokenizer._tokenizer.chat_template = template
    return dataclasses.replace(pair, tokenizer=tokenizer)


@EVERY
def test_template_that_rewrites_history(name):
    """Thoughts are dropped from earlier answers: reuse up to there, answers of a cold run (P87)."""
    pair = pair_named(name)
    if isinstance(pair.tokenizer, CharTokenizer):
        pair = dataclasses.replace(pair, tokenizer=CharTokenizer(forgets=True))
    else:
        pair = with_template(pair, FORGETS)
    session = ChatSession(pair, "Be brief.")
    check_turn(session, FIRST)
    prompt = len(session._ids(session.messages[:-1]))
    seen = check_turn(session, SECOND)
    if name != "gemma4":  # whose windows wrapped before the place of parting
        assert prompt // 2 < seen.cached < prompt
    check_turn(session, THIRD)


@BOTH
def test_forks_are_independent(name):
    session = ChatSession(pair_named(name), max_tokens=TURN, cutoff="full")
    session.send(FIRST)
    a, b = session.fork(), session.fork()
    half = a.stream(SECOND)
    next(half), next(half)
    check_turn(b, THIRD, len(session.tokens) - 2)
    half.close()
    check_turn(a, FIRST, 20)
    check_turn(session, SECOND, len(session.tokens) - 2)


def test_shared_prefix_is_processed_once():
    """A system message that was prepared costs the sessions after it nothing."""
    system = "Answer in one short sentence, and name the city where the bird lives."
    base = ChatSession(with_template(pair_named("qwen3"), ANY_ROLE), system)
    first = base.prepare()
    assert first > 20
    assert base.prepare() <= 1
    assert base.messages == [{"role": "system", "content": system}]
    for text in (FIRST, SECOND):
        check_turn(base.fork(), text, first - 1)


@EVERY
def test_saved_and_loaded(name, tmp_path):
    pair = pair_named(name)
    session = ChatSession(pair, max_tokens=TURN, cutoff="full")
    session.send(FIRST)
    session.send(SECOND, max_tokens=6)
    for _ in range(2):  # the second time over the first
        session.save(tmp_path / "chat")
    read = ChatSession.load(pair, tmp_path / "chat")
    assert (read.messages, read.tokens) == (session.messages, session.tokens)
    ours, theirs = check_turn(read, THIRD, 20), check_turn(session, THIRD, 20)
    assert (ours.proposed, ours.cached) == (theirs.proposed, theirs.cached)
    entries = load_prompt_cache(str(tmp_path / "chat" / "cache.safetensors"))  # mlx-lm's own
    assert {e.offset for e in entries if hasattr(e, "offset")} == {json.loads(
        (tmp_path / "chat" / "session.json").read_text())["positions"]}  # fmt: skip
    empty = ChatSession(pair)
    empty.save(tmp_path / "empty")
    check_turn(ChatSession.load(pair, tmp_path / "empty"), FIRST)


def test_saved_session_is_refused_by_another_pair(tmp_path):
    """By content: a copy of the same weights under another name is the same model."""
    pair = pair_named("qwen3")
    session = ChatSession(pair, max_tokens=TURN, cutoff="full")
    session.send(FIRST)
    session.save(tmp_path / "chat")
    renamed = dataclasses.replace(pair, target=copy.copy(pair.target))
    renamed.target.name = "elsewhere"
    assert ChatSession.load(renamed, tmp_path / "chat").messages == session.messages
    for other, part in (("gemma4", "target"), ("eagle3", "drafter")):
        with pytest.raises(PairError, match=f"another {part}"):
            ChatSession.load(pair_named(other), tmp_path / "chat")
    with pytest.raises(PairError, match="another drafter"):
        ChatSession.load(dataclasses.replace(pair, drafter=None), tmp_path / "chat")


def test_fingerprint_sees_one_changed_weight():
    pair = pair_named("qwen3")
    model, config = pair.target.model, pair.target.config
    before = fingerprints(pair)
    assert fingerprints(pair) == before
    weight = model.model.layers[3].mlp.up_proj.weight
    model.model.layers[3].mlp.up_proj.weight = weight.at[0, 5].add(1e-3)
    assert fingerprint(model, config) != before["target"]
    model.model.layers[3].mlp.up_proj.weight = weight
    assert fingerprint(model, config) == before["target"]
    assert fingerprint(model, config | {"rope_theta": 1.0}) != before["target"]
    assert fingerprint(model, config | {"_name_or_path": "x"}) == before["target"]


@pytest.mark.parametrize("file", ["session.json", "cache.safetensors", "context.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damaged_session(file, damage, tmp_path):
    """One line, and never half a session."""
    session = ChatSession(pair_named("qwen3"), max_tokens=TURN, cutoff="full")
    session.send(FIRST)
    session.save(tmp_path / "chat")
    path = tmp_path / "chat" / file
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError) as caught:
        ChatSession.load(session.pair, tmp_path / "chat")
    assert "\n" not in str(caught.value) and str(tmp_path / "chat") in str(caught.value)


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    with pytest.raises(UserError, match="not a saved session"):
        ChatSession(pair_named("qwen3")).save(tmp_path / "notes")
    assert [p.name for p in (tmp_path / "notes").iterdir()] == ["a.txt"]


def test_templates_that_refuse():
    """One clear line at the constructor or the call, and messages as they were."""
    pair = with_template(pair_named("qwen3"), STRICT)
    with pytest.raises(OptionError, match="refuses these messages: roles must alternate"):
        ChatSession(pair, "A system message.")
    with pytest.raises(OptionError, match="leaves system messages out"):
        ChatSession(pair_named("qwen3"), "A system message.")
    session = ChatSession(pair, max_tokens=TURN, cutoff="full")
    events = session.stream(FIRST)
    events.close()  # nothing said: the next message is the first
    session.send(FIRST)
    assert session.send(SECOND).tokens
    with pytest.raises(OptionError, match="expected text"):
        session.stream(5)
    with pytest.raises(OptionError, match="needs a role"):
        ChatSession(pair, messages=[{"content": "x"}])


def in_thread(function):
    """The function's result, or its error, from a new thread."""
    box = []

    def work():
        try:
            box.append((function(), None))
        except Exception as error:  # noqa: BLE001
            box.append((None, error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    result, error = box[0]
    if error:
        raise error
    return result


@EVERY
def test_every_event_from_another_thread(name):
    """Turns and even single events may come from different threads (P77)."""
    pair = pair_named(name)
    session = ChatSession(pair, max_tokens=TURN, cutoff="full")
    in_thread(lambda: session.send(FIRST))
    want = fresh(pair, [*session.messages, {"role": "user", "content": SECOND}])
    events, texts = session.stream(SECOND), []
    while (event := in_thread(lambda: next(events, None))) is not None:
        texts.append(getattr(event, "text", ""))
    assert "".join(texts) == want.answer.text
    check_turn(session, THIRD, 20)


def test_two_threads_at_once_are_refused(monkeypatch):
    session = ChatSession(pair_named("qwen3"), max_tokens=TURN, cutoff="full")
    forward, errors = session.pair.tapped, []

    def tapped(ids, cache):
        if not errors:
            try:
                in_thread(lambda: next(session.stream(SECOND)))
            except SessionError as error:
                errors.append(str(error))
        return forward(ids, cache)

    monkeypatch.setitem(session.pair.__dict__, "tapped", tapped)
    first = next(session.stream(FIRST))
    assert isinstance(first, Prefilled) and "busy in another thread" in errors[0]


def test_memory_of_a_fork_is_let_go():
    session = ChatSession(pair_named("qwen3"), max_tokens=TURN, cutoff="full")
    session.send(FIRST)
    session.fork().send(SECOND)  # the first write parts what was shared
    gc.collect()
    before = mx.get_active_memory()
    for _ in range(5):
        session.fork().send(SECOND)
    gc.collect()
    assert mx.get_active_memory() <= before * 1.01
