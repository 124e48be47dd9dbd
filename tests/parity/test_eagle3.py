"""Eagle3's forward against tensors recorded from the PyTorch reference."""

import mlx.core as mx

from .test_forward import close


def test_forward(pair_of, fixtures):
    model = pair_of("eagle3").drafter
    golden, meta = mx.load(str(fixtures / "goldens" / "eagle3.safetensors"), return_metadata=True)
    for prompt in meta["prompts"].split(","):
        context = model.start()
        for round_ in range(3):
            prefix = f"p{prompt}.r{round_}."
            check_round(model, context, {k[len(prefix) :]: v for k, v in golden.items()
                                         if k.startswith(prefix)})  # fmt: skip


def check_round(model, context, want):
    features, following = want["tap_features"], want["feature_token_ids"]
    assert want["feature_positions"].tolist()[0] == context.length
    model.extend(context, mx.split(features, 5, axis=-1), following)
    close(context.newest, want["draft_hidden_prenorm"][:1])
    seen = []

    def pick(logits):
        seen.append(logits)
        return mx.argmax(logits, axis=-1), None

    count = len(want["proposed_tokens"].tolist())
    length = context.length
    proposal = model.propose(context, following.tolist()[-1], 7, count, pick)
    assert proposal.tokens.tolist() == want["proposed_tokens"].tolist()
    close(mx.concatenate(seen), want["logits"])
    assert context.length == context.cache.offset == length
