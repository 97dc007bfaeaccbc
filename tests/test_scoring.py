"""Force decoding against the search's own scores, and attention against the formula."""

import builders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import CORPUS, random_pairs, small_config, small_model

from transformer_jax.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.model.layers import sinusoid
from transformer_jax.model.transformer import stack_layers
from transformer_jax.scoring import Scorer, attention_weights, token_log_probs
from transformer_jax.translate import Translator

CONFIG = DecodeConfig(max_extra_length=5, beam_size=3)
WEIGHTS = jax.jit(attention_weights, static_argnums=0)
SOURCES = [CORPUS[0], "a tree", CORPUS[200]]


def both_of(models, tokenizer, devices=1, config=CONFIG):
    networks = tuple(network for network, _ in models)
    mesh = builders.mesh_of(data=devices)
    arguments = networks, builders.both(tokenizer), config, mesh
    return Translator(*arguments), Scorer(*arguments)


@pytest.fixture
def tokenizer():
    return builders.corpus_tokenizer()


@pytest.fixture
def model():
    return builders.decided_model()


@pytest.fixture
def members(model):
    """Two models with unlike weights."""
    network, params = model
    return [(network, params), (network, jax.tree.map(lambda x: -0.9 * x[::-1], params))]


@pytest.mark.parametrize("count", [1, 2])
def test_the_score_of_a_translation_is_that_of_the_search(members, tokenizer, count):
    """E13: for every hypothesis of an n-best list, of one model and of an ensemble."""
    members = members[:count]
    translator, scorer = both_of(members, tokenizer)
    params = tuple(params for _, params in members)
    pairs, expected = [], []
    for translation in translator.translate(params, SOURCES, num_best=3):
        assert len(translation.hypotheses) == 3
        for hypothesis in translation.hypotheses:
            pairs.append((translation.sources[0], hypothesis.tokens[0]))
            expected.append(hypothesis.log_prob)
    found = []
    for pair in pairs:
        _, batch = one_batch(scorer, pair)
        found.append(scorer._call(scorer._log_probs, params, batch)[0, : len(pair[1])].sum())
    np.testing.assert_allclose(found, expected, atol=1e-4)


def one_batch(scorer, pair):
    return next(scorer._batches([pair]))


def test_an_ensemble_has_the_log_of_the_mean_probability(members, tokenizer):
    params = tuple(params for _, params in members)
    networks = tuple(network for network, _ in members)
    pairs = random_pairs(seed=1, count=3)
    batch = builders.make_batch([[pair] for pair in pairs], 16, 16)
    log_probs = jax.jit(token_log_probs, static_argnums=0)
    together = np.asarray(log_probs(networks, params, batch))
    alone = [log_probs((n,), (p,), batch) for n, p in zip(networks, params, strict=True)]
    expected = np.log(np.mean(np.exp(np.asarray(alone, np.float64)), axis=0))
    np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(np.subtract(*alone)).max() > 0.5


def test_scores_do_not_depend_on_batches_neighbours_or_devices(model, tokenizer):
    sources, targets = [*SOURCES, ""], ["x", CORPUS[9], "", "a tree"]
    _, scorer = both_of([model], tokenizer)
    together = scorer.score((model[1],), sources, targets)
    assert [score.pieces[-1] for score in together] == ["</s>"] * 4
    assert len(together[2].pieces) == 1  # a blank target is an end mark
    config = DecodeConfig(tokens_per_batch=1)
    _, scorer = both_of([model], tokenizer, 2, config)
    params = (jax.device_get(model[1]),)
    for number, pair in enumerate(zip(sources, targets, strict=True)):
        (alone,) = scorer.score(params, *([line] for line in pair))
        assert alone.pieces == together[number].pieces
        np.testing.assert_allclose(alone.log_probs, together[number].log_probs, atol=1e-4)
        assert alone.log_prob == pytest.approx(sum(alone.log_probs))


def test_what_cannot_be_scored_whole_is_refused(model, tokenizer):
    _, scorer = both_of([model], tokenizer, config=DecodeConfig(max_source_length=8))
    with pytest.raises(UserError, match=r"line 12: the target has .* more than the 8"):
        scorer.score((model[1],), ["a", "a"], ["a", CORPUS[0]], first=10)
    with pytest.raises(UserError, match="1 sources but 2 targets"):
        scorer.score((model[1],), ["a"], ["a", "b"])


def test_attention_is_that_of_the_formula():
    """Section 3.2.1, in numpy, for the first layer of the encoder: its input is the embedding."""
    config = small_config()
    params = builders.small_params(config)
    (pair,) = random_pairs(seed=4, count=1)
    batch = builders.make_batch([[pair]], 12, 12)
    weights = WEIGHTS(small_model(config), (params,), batch)
    length = len(pair[0])
    x = 4 * np.asarray(params["embedding"]["embedding"])[pair[0]]
    x = x + np.asarray(sinusoid(jnp.arange(length), 16))
    layer = params["encoder_layers_0"]
    query = np.asarray(layer["self_attention"]["query"]["kernel"])
    key = np.asarray(layer["self_keys_values"]["key"]["kernel"])
    heads = [np.einsum("lm,mhd->lhd", x, kernel) for kernel in (query, key)]
    scores = np.einsum("qhd,khd->hqk", *heads) / np.sqrt(4)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights.encoder[0, 0, :, :length, :length], expected, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_attention_is_the_same_however_the_layers_are_stored(norm):
    config, stacked = small_config(norm=norm), small_config(norm=norm, scan_layers=True)
    params = builders.small_params(config)
    pairs = random_pairs(seed=5, count=2)
    batch = builders.make_batch([[pair] for pair in pairs], 10, 11)
    weights = WEIGHTS(small_model(config), (params,), batch)
    again = WEIGHTS(small_model(stacked), (stack_layers(params),), batch)
    shapes = [(2, 2, 4, 10, 10), (2, 2, 4, 11, 11), (2, 2, 4, 11, 10)]
    assert [each.shape for each in weights] == shapes
    for one, other in zip(weights, again, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    for row, (source, target) in enumerate(pairs):
        for each, queries, keys in zip(
            weights, (source, target, target), (source, target, source), strict=True
        ):
            mine = np.asarray(each)[:, row, :, : len(queries)]
            np.testing.assert_allclose(mine[..., : len(keys)].sum(axis=-1), 1, atol=1e-5)
            assert (mine[..., len(keys) :] == 0).all()  # none to padding
        later = np.triu(np.asarray(weights.decoder)[:, row, :, : len(target)], k=1)
        assert (later == 0).all()


def test_maps_carry_their_pieces(model, tokenizer):
    _, scorer = both_of([model], tokenizer)
    maps = scorer.attention((model[1],), CORPUS[0], "a tree")
    assert "".join(maps.source_pieces).replace("▁", " ") == f" {CORPUS[0]}</s>"
    assert maps.target_pieces[-1] == "</s>"
    assert maps.previous_pieces == ["<s>", *maps.target_pieces[:-1]]
    src, tgt = len(maps.source_pieces), len(maps.target_pieces)
    assert maps.encoder.shape == (2, 4, src, src)
    assert maps.decoder.shape == (2, 4, tgt, tgt)
    assert maps.cross.shape == (2, 4, tgt, src)


def test_an_ensemble_has_no_maps_but_alignments(members, tokenizer):
    translator, scorer = both_of(members, tokenizer)
    params = tuple(params for _, params in members)
    with pytest.raises(UserError, match="load one checkpoint"):
        scorer.attention(params, "a", "b")
    translations = translator.translate(params, ["a tree", ""], num_best=2)
    found = scorer.align(params, translations, lambda alignment: alignment)
    assert [len(each) for each in found] == [2, 1]
    assert found[1][0].pharaoh() == ""
    alignment = found[0][0]
    pair = translations[0].sources[0], translations[0].hypotheses[0].tokens[0]
    _, batch = one_batch(scorer, pair)
    own = [WEIGHTS(network, (params,), batch).cross for network, params in members]
    rows, columns = alignment.weights.shape
    expected = np.mean([np.asarray(w)[:, 0, :, :rows, :columns] for w in own], axis=(0, 1, 2))
    np.testing.assert_allclose(alignment.weights, expected, atol=1e-5)
    assert len(alignment.target) == rows and len(alignment.source) == columns


def test_parts_of_a_long_source_are_aligned_each_with_its_own(model, tokenizer):
    config = DecodeConfig(max_extra_length=2, beam_size=2, max_source_length=8)
    translator, scorer = both_of([model], tokenizer, config=config)
    params = (model[1],)
    translations = translator.translate(params, [CORPUS[0]])
    ((alignment,),) = scorer.align(params, translations, lambda alignment: alignment)
    sources, tokens = translations[0].sources, translations[0].hypotheses[0].tokens
    assert len(sources) > 1
    assert "".join(alignment.source).replace("▁", " ") == f" {CORPUS[0]}"
    widths = [len(ids) - 1 for ids in sources]
    heights = [sum(token != tokenizer.eos_id for token in ids) for ids in tokens]
    assert alignment.weights.shape == (sum(heights), sum(widths))
    assert (alignment.weights[: heights[0], widths[0] :] == 0).all()
    assert (alignment.weights[heights[0] :, : widths[0]] == 0).all()
