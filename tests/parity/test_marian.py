"""The model and its beam search against Marian of the transformers library, weights converted.

The Marian model has random weights of a seed; nothing is downloaded.
"""

import builders
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from closeness import assert_close, assert_gradients_close

from transformer_jax.config import DecodeConfig
from transformer_jax.convert import from_marian, marian_model_config, to_marian
from transformer_jax.decode import SpecialIds
from transformer_jax.errors import UserError
from transformer_jax.loss import loss_sums
from transformer_jax.model.transformer import Transformer
from transformer_jax.translate import search

torch = pytest.importorskip("torch", reason="pip install -r tests/requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="the same")

VOCAB_SIZE = 40
EOS, UNK, BOS, PAD = 0, 1, 38, 39
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "activation_function": "relu",
    "scale_embedding": True,
    "max_position_embeddings": 64,
    # Marian's own models start with their padding id and must end at the limit; told apart here.
    "eos_token_id": EOS,
    "unk_token_id": UNK,
    "pad_token_id": PAD,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": None,
    "bos_token_id": BOS,
}


def marian(**changes):
    """A model in which nothing is zero: biases, norms and the embeddings are random too."""
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig(**(SIZES | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                spread = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
                parameter.copy_(spread * torch.randn(parameter.shape))
                if "layer_norm.weight" in name:
                    parameter.add_(1)
        model.final_logits_bias.copy_(0.3 * torch.randn(model.final_logits_bias.shape))
    return model


def arrays(state):
    return {name: value.detach().numpy() for name, value in state.items()}


def ported(model, **options):
    config = marian_model_config(model.config.to_dict())
    params = from_marian(arrays(model.state_dict()), config, **options)
    network = Transformer(config, VOCAB_SIZE, BOS)
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), sentences(1)[1]))["params"]
    shapes = builders.sharding.unbox(shapes)
    assert jax.tree.structure(params) == jax.tree.structure(shapes)
    assert jax.tree.map(np.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    return network, params


def random_pairs(random, count):
    def sentence():
        return [*random.integers(2, BOS, random.integers(1, 13)).tolist(), EOS]

    return [(sentence(), sentence()) for _ in range(count)]


def sentences(count):
    """Pairs of many lengths, and the batch of them, padded."""
    pairs = random_pairs(np.random.default_rng(3), count)
    return pairs, builders.make_batch([[pair] for pair in pairs], 14, 15)


def forward(model, batch):
    """Logits of the other model; padding is told to it as it wants it."""
    real = {side: np.asarray(batch[f"{side}_segments"]) != 0 for side in ("inputs", "targets")}
    inputs, targets = (np.where(real[s], batch[s], PAD) for s in ("inputs", "targets"))
    shifted = np.concatenate([np.full((len(targets), 1), BOS), targets[:, :-1]], axis=1)
    return model(
        input_ids=torch.tensor(inputs),
        attention_mask=torch.tensor(real["inputs"].astype(int)),
        decoder_input_ids=torch.tensor(shifted),
    ).logits


@pytest.mark.parametrize("activation", ["relu", "swish"])
def test_logits_and_gradients_are_those_of_marian(activation):
    model = marian(activation_function=activation)
    network, params = ported(model)
    _, batch = sentences(8)
    real = np.asarray(batch["targets_segments"]) != 0
    theirs = forward(model, batch)
    ours = jax.jit(network.apply)({"params": params}, batch)
    assert_close(np.asarray(ours)[real], theirs.detach().numpy()[real], 1e-5)

    targets = np.where(real, batch["targets"], PAD)
    torch.nn.functional.cross_entropy(
        theirs.reshape(-1, VOCAB_SIZE),
        torch.tensor(targets.reshape(-1)).long(),
        ignore_index=PAD,
        reduction="sum",
    ).backward()

    def loss(params):
        logits = network.apply({"params": params}, batch)
        return loss_sums(logits, batch["targets"], batch["targets_segments"], 0.0).loss

    gradients = jax.device_get(jax.jit(jax.grad(loss))(params))
    their_gradients = arrays(
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    )
    # Their bias of the logits is not trained: it has no gradient.
    their_gradients["final_logits_bias"] = np.zeros((1, VOCAB_SIZE))
    their_gradients = from_marian(their_gradients, network.config)
    for tree in (gradients, their_gradients):
        del tree["embedding"]["output_bias"]
    assert jax.tree.structure(gradients) == jax.tree.structure(their_gradients)
    assert_gradients_close(gradients, their_gradients)


def test_conversion_back_gives_the_same_state_dict():
    model = marian()
    network, params = ported(model)
    back = to_marian(params, network.config, max_positions=64)
    state = arrays(model.state_dict())
    assert sorted(back) == sorted(state)
    for name, value in state.items():
        np.testing.assert_allclose(back[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    again = marian()
    for parameter in again.parameters():
        parameter.data.zero_()
    again.load_state_dict({name: torch.tensor(value) for name, value in back.items()})
    _, batch = sentences(3)
    assert torch.allclose(forward(again, batch), forward(model, batch), atol=1e-5)


def test_a_model_with_interleaved_positions_is_converted_by_the_option():
    model = marian()
    for stack in (model.model.encoder, model.model.decoder):
        table = stack.embed_positions.weight
        half = table.shape[1] // 2
        table.data = torch.stack([table[:, :half], table[:, half:]], dim=2).reshape(table.shape)
    with pytest.raises(UserError, match="no sines and cosines that are concatenated"):
        ported(model)
    network, params = ported(model, positions="interleaved")
    _, batch = sentences(8)
    real = np.asarray(batch["targets_segments"]) != 0
    theirs = forward(model, batch).detach().numpy()
    ours = np.asarray(network.apply({"params": params}, batch))
    assert_close(ours[real], theirs[real], 1e-5)
    back = to_marian(params, network.config, "interleaved", max_positions=64)
    np.testing.assert_array_equal(
        back["model.shared.weight"], model.model.shared.weight.detach().numpy()
    )


def decided_marian():
    """One that prefers some tokens clearly, does not repeat itself, and ends most sentences."""
    model = marian()
    with torch.no_grad():
        model.model.shared.weight.mul_(2.0)
        # The tied output favours the token just read; turned round, it avoids it.
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(-4.0)
        model.final_logits_bias[0, EOS] += 9.0
    return model


def trained_marian():
    """One that has half learned to lead greedy search astray.

    Most of its sentences begin with a copy of the source's token, but go on in one of many ways;
    the others are in a cipher throughout.
    """
    model = marian()
    network, params = ported(model)
    random = np.random.default_rng(5)
    cipher = random.permutation(np.arange(2, BOS))

    def batch():
        pairs = []
        for source, _ in random_pairs(random, 32):
            target = [cipher[token - 2] for token in source[:-1]]
            if random.random() < 0.6:
                mixed = random.random(len(target)) < 0.5
                target = [source[0], *np.where(mixed, target, source[:-1])[1:]]
            pairs.append((source, [*target, EOS]))
        return builders.make_batch([[pair] for pair in pairs], 14, 14)

    adam = optax.adam(optax.linear_schedule(5e-3, 0.0, 800))

    @jax.jit
    def step(params, state, batch):
        def loss(params):
            logits = network.apply({"params": params}, batch)
            sums = loss_sums(logits, batch["targets"], batch["targets_segments"], 0.0)
            return sums.loss / sums.tokens

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = adam.update(gradients, state)
        return value, optax.apply_updates(params, updates), state

    state = adam.init(params)
    for _ in range(800):
        value, params, state = step(params, state, batch())
    assert value < 1.6  # chance is 3.6
    state = to_marian(params, network.config, max_positions=64)
    model.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    return model


def both_searches(model, num_beams, length=30, count=64):
    """[(tokens, score)] of `count` sentences: theirs, and ours."""
    network, params = ported(model)
    _, batch = sentences(count)
    real = np.asarray(batch["inputs_segments"]) != 0
    theirs = model.generate(
        input_ids=torch.tensor(np.where(real, batch["inputs"], PAD)),
        attention_mask=torch.tensor(real.astype(int)),
        num_beams=num_beams,
        do_sample=False,
        max_length=length + 1,
        bad_words_ids=[[PAD], [BOS], [UNK]],
        return_dict_in_generate=True,
        output_scores=True,
        **({"length_penalty": 0.0, "early_stopping": "never"} if num_beams > 1 else {}),
    )
    config = DecodeConfig(beam_size=num_beams, length_penalty=0.0, max_extra_length=length)
    ours = jax.jit(search, static_argnums=(0, 1, 2))(
        (network,),
        config,
        SpecialIds(PAD, BOS, EOS, UNK),
        (params,),
        batch["inputs"],
        batch["inputs_segments"],
        jnp.full((count, 1), length, jnp.int32),
    )
    their_scores = theirs.sequences_scores.tolist() if num_beams > 1 else [0.0] * count
    their_tokens = [[t for t in row[1:].tolist() if t != PAD] for row in theirs.sequences]
    our_tokens = [[t for t in row[0].tolist() if t != PAD] for row in ours.tokens]
    return (
        list(zip(their_tokens, their_scores, strict=True)),
        list(zip(our_tokens, ours.scores[:, 0].tolist(), strict=True)),
    )


def test_a_beam_of_one_is_the_greedy_search_of_marian():
    theirs, ours = both_searches(decided_marian(), num_beams=1)
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    assert sum(tokens[-1] == EOS for tokens, _ in theirs) > 48


def test_beam_search_is_that_of_marian():
    """With no length penalty, as alpha 0 alone is the same there (length^alpha) and here."""
    model = trained_marian()
    theirs, ours = both_searches(model, num_beams=4, count=256)
    greedy, _ = both_searches(model, num_beams=1, count=256)
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    np.testing.assert_allclose([s for _, s in ours], [s for _, s in theirs], atol=1e-4)
    assert sum(one[0] != other[0] for one, other in zip(theirs, greedy, strict=True)) > 2


def test_beam_search_with_random_weights_is_that_of_marian():
    """Without any end mark, so that what is told below makes no difference."""
    model = decided_marian()
    model.final_logits_bias[0, EOS] = -torch.inf
    theirs, ours = both_searches(model, num_beams=4, length=12)
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    np.testing.assert_allclose([s for _, s in ours], [s for _, s in theirs], rtol=1e-5, atol=1e-4)
    assert len({tuple(tokens) for tokens, _ in theirs}) > 32


def test_beam_search_finds_nothing_worse_than_marian_with_random_weights():
    """There an end mark competes only where it is among the likeliest four continuations.

    Here it always does, so in a model that ends at random some better hypotheses are found; never
    a worse one, where both end. That they are better, Marian's own forward pass says.
    """
    model = decided_marian()
    theirs, ours = both_searches(model, num_beams=4)
    pairs, _ = sentences(64)
    equal = better = 0
    for (source, _), (their_tokens, their_score), (tokens, score) in zip(
        pairs, theirs, ours, strict=True
    ):
        if their_tokens[-1] != EOS:
            continue  # an unfinished hypothesis ranks last here, by its score there
        if tokens == their_tokens:
            assert score == pytest.approx(their_score, abs=1e-4)
            equal += 1
        else:
            batch = builders.make_batch([[(source, tokens)]], len(source), len(tokens))
            log_p = torch.log_softmax(forward(model, batch)[0], dim=-1)
            forced = sum(float(log_p[i, token]) for i, token in enumerate(tokens))
            assert score == pytest.approx(forced, abs=1e-4)
            assert score > their_score
            better += 1
    assert equal > 48 and equal + better > 54


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.decoder.layers.1.fc1.bias": None}, "model.decoder.layers.1.fc1.bias is missing"),
        ({"model.encoder.layers.2.fc1.bias": np.zeros(3)}, "is not a part of such a model"),
        ({"final_logits_bias": np.zeros((1, 3))}, r"final_logits_bias has shape \(1, 3\), not"),
        ({"lm_head.weight": np.zeros((40, 32))}, "lm_head.weight is not the shared embedding"),
    ],
)
def test_a_state_dict_of_another_model_is_refused(change, message):
    model = marian()
    state = arrays(model.state_dict()) | change
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(UserError, match=message):
        from_marian(state, marian_model_config(model.config.to_dict()))


def test_a_model_that_cannot_be_described_is_refused():
    values = transformers.MarianConfig(**SIZES).to_dict()
    with pytest.raises(UserError, match="scale_embedding is False"):
        marian_model_config(values | {"scale_embedding": False})
    with pytest.raises(UserError, match="activation_dropout is missing"):
        marian_model_config({k: v for k, v in values.items() if k != "activation_dropout"})
    with pytest.raises(UserError, match=r"model\.activation is 'gelu'"):
        marian_model_config(values | {"activation_function": "gelu"})
    with pytest.raises(UserError, match=r"model\.attention_bias is False"):
        to_marian({}, builders.small_config().model)
