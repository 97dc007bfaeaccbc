"""Force decoding against the search's own scores, and attention against the formula."""

import functools

import builders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import CORPUS, random_pairs, small_config

from transformer_jax.config import DecodeConfig, TokenizerConfig
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.model.layers import sinusoid
from transformer_jax.model.transformer import stack_layers
from transformer_jax.scoring import Scorer, attention_weights
from transformer_jax.translate import Hypothesis, Translation, Translator

CONFIG = DecodeConfig(max_extra_length=3, beam_size=3)
NORMS = ("encoder_norm", "decoder_norm")
SOURCES = [CORPUS[0], "a tree", CORPUS[200]]  # as short as all here: rows of 16 tokens


@functools.cache
def both_of(num_models=1, devices=1, config=CONFIG):
    """Of so many models; the same in all tests, so that its shapes are compiled once."""
    network, _ = builders.decided_model()
    tokenizers = builders.both(builders.corpus_tokenizer())
    arguments = (network,) * num_models, tokenizers, config, builders.mesh_of(data=devices)
    return Translator(*arguments), Scorer(*arguments)


@functools.cache
def weights_of(num_models=1):
    """The parameters of each model, unlike those of the others."""
    _, params = builders.decided_model()
    return (params, jax.tree.map(lambda x: -0.9 * x[::-1], params))[:num_models]


def pairs_of(*pairs):
    """Tokens of each source and its target."""
    tokenizer = builders.corpus_tokenizer()
    sides = (tokenizer.encode(list(side)) for side in zip(*pairs, strict=True))
    sources, targets = ([[*ids, tokenizer.eos_id] for ids in side] for side in sides)
    return list(zip(sources, targets, strict=True))


@pytest.mark.parametrize("num_models", [1, 2])
def test_the_score_of_a_translation_is_that_of_the_search(num_models):
    """E13: for every hypothesis of an n-best list, of one model and of an ensemble."""
    translator, scorer = both_of(num_models)
    params = weights_of(num_models)
    (translation,) = translator.translate(params, SOURCES[:1], num_best=3)
    assert len(translation.hypotheses) == 3
    pairs = [(translation.sources[0], each.tokens[0]) for each in translation.hypotheses]
    ((_, batch),) = scorer._batches(pairs)
    log_probs = scorer._call(scorer._log_probs, params, batch)
    for row, hypothesis in enumerate(translation.hypotheses):
        found = log_probs[row, : len(hypothesis.tokens[0])].sum()
        assert found == pytest.approx(hypothesis.log_prob, abs=1e-4)


def test_an_ensemble_has_the_log_of_the_mean_probability():
    _, scorer = both_of(2)
    _, alone = both_of(1)
    pairs = pairs_of((SOURCES[0], "x"), (SOURCES[2], SOURCES[0]), ("a", ""), ("x", "a tree"))
    ((_, batch),) = scorer._batches(pairs)
    together = scorer._call(scorer._log_probs, weights_of(2), batch)
    each = [alone._call(alone._log_probs, (params,), batch) for params in weights_of(2)]
    expected = np.log(np.mean(np.exp(np.asarray(each, np.float64)), axis=0))
    np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(np.subtract(*each)).max() > 0.5


def test_scores_do_not_depend_on_batches_neighbours_or_devices():
    sources, targets = [*SOURCES, ""], ["x", SOURCES[0], "", "a tree"]
    _, scorer = both_of()
    together = scorer.score(weights_of(), sources, targets)
    assert [score.pieces[-1] for score in together] == ["</s>"] * 4
    assert len(together[2].pieces) == 1  # a blank target is an end mark
    _, scorer = both_of(devices=2, config=DecodeConfig(tokens_per_batch=1))
    for number, pair in enumerate(zip(sources, targets, strict=True)):
        (alone,) = scorer.score(weights_of(), *([line] for line in pair))
        assert alone.pieces == together[number].pieces
        np.testing.assert_allclose(alone.log_probs, together[number].log_probs, atol=1e-4)
        assert alone.log_prob == pytest.approx(sum(alone.log_probs))


def test_what_cannot_be_scored_whole_is_refused():
    _, scorer = both_of(config=DecodeConfig(max_source_length=8))
    with pytest.raises(UserError, match=r"line 12: the target has .* more than the 8"):
        scorer.score(weights_of(), ["a", "a"], ["a", CORPUS[0]], first=10)
    with pytest.raises(UserError, match="1 sources but 2 targets"):
        scorer.score(weights_of(), ["a"], ["a", "b"])


def test_attention_is_that_of_the_formula():
    """Section 3.2.1, in numpy, for the first layer of the encoder: its input is the embedding."""
    _, scorer = both_of()
    pairs = pairs_of((SOURCES[0], "a tree"))
    ((_, batch),) = scorer._batches(pairs)
    weights = scorer._call(scorer._weights, weights_of(), batch)
    source, length = pairs[0][0], len(pairs[0][0])
    (params,) = weights_of()
    x = 4 * np.asarray(params["embedding"]["embedding"])[source]
    x = x + np.asarray(sinusoid(jnp.arange(length), 16))
    layer = params["encoder_layers_0"]
    query = np.asarray(layer["self_attention"]["query"]["kernel"])
    key = np.asarray(layer["self_keys_values"]["key"]["kernel"])
    heads = [np.einsum("lm,mhd->lhd", x, kernel) for kernel in (query, key)]
    scores = np.einsum("qhd,khd->hqk", *heads) / np.sqrt(4)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights.encoder[0, 0, :, :length, :length], expected, atol=1e-5)


def test_attention_is_the_same_however_the_layers_are_stored():
    """Of a pre-norm model, in which the normalisations after the stacks count."""
    norms = {name: {"scale": np.full(16, 2.0), "bias": np.ones(16)} for name in NORMS}
    params = weights_of()[0] | jax.tree.map(jnp.float32, norms)
    network, _ = builders.decided_model()
    pairs = random_pairs(seed=5, count=2)
    batch = builders.make_batch([[pair] for pair in pairs], 10, 11)
    weights, again = (
        jax.jit(functools.partial(attention_weights, network.clone(config=config)))(
            (stored,), batch
        )
        for config, stored in (
            (small_config(norm="pre").model, params),
            (small_config(norm="pre", scan_layers=True).model, stack_layers(params)),
        )
    )
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


def test_maps_carry_their_pieces():
    _, scorer = both_of()
    maps = scorer.attention(weights_of(), SOURCES[0], "a tree")
    assert "".join(maps.source_pieces).replace("▁", " ") == f" {SOURCES[0]}</s>"
    assert maps.target_pieces[-1] == "</s>"
    assert maps.previous_pieces == ["<s>", *maps.target_pieces[:-1]]
    src, tgt = len(maps.source_pieces), len(maps.target_pieces)
    assert maps.encoder.shape == (2, 4, src, src)
    assert maps.decoder.shape == (2, 4, tgt, tgt)
    assert maps.cross.shape == (2, 4, tgt, src)


def test_an_ensemble_has_no_maps_but_alignments():
    translator, scorer = both_of(2)
    params = weights_of(2)
    with pytest.raises(UserError, match="load one checkpoint"):
        scorer.attention(params, "a", "b")
    translations = translator.translate(params, [SOURCES[0], ""], num_best=3)
    found = scorer.align(params, translations, lambda alignment: alignment)
    assert [len(each) for each in found] == [3, 1]
    assert found[1][0].pharaoh() == ""
    alignment = found[0][0]
    _, alone = both_of(1)
    pair = translations[0].sources[0], translations[0].hypotheses[0].tokens[0]
    ((_, batch),) = alone._batches([pair])
    own = [alone._call(alone._weights, (each,), batch).cross for each in params]
    rows, columns = alignment.weights.shape
    expected = np.mean([each[:, 0, :, :rows, :columns] for each in own], axis=(0, 1, 2))
    np.testing.assert_allclose(alignment.weights, expected, atol=1e-5)
    assert len(alignment.target) == rows and len(alignment.source) == columns


def test_parts_of_a_long_source_are_aligned_each_with_its_own():
    _, scorer = both_of(2)
    tokenizer = builders.corpus_tokenizer()
    sources = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode(["the old", "dog sleeps"])]
    tokens = [ids + [tokenizer.eos_id] * ended for ids, ended in (([20, 21, 22], 1), ([23, 24], 0))]
    hypothesis = Hypothesis("", 0.0, 0.0, False, tokens)
    translation = Translation([hypothesis], False, sources)
    (alignment,), _ = scorer.align(weights_of(2), [translation] * 2, lambda alignment: alignment)
    assert "".join(alignment.source).replace("▁", " ") == " the old dog sleeps"
    assert alignment.target == tokenizer.pieces([20, 21, 22, 23, 24])
    width = len(sources[0]) - 1
    assert alignment.weights.shape == (5, width + len(sources[1]) - 1)
    assert (alignment.weights[:3, width:] == 0).all() and (alignment.weights[3:, :width] == 0).all()
    assert (alignment.weights[:3, :width] > 0).all() and (alignment.weights[3:, width:] > 0).all()


def test_each_side_has_a_tokenizer_of_its_own():
    source = builders.corpus_tokenizer()
    upper = [line.upper() for line in CORPUS]
    target = Tokenizer(train_tokenizer(upper, TokenizerConfig(vocab_size=320)))
    network, params = builders.decided_model()
    matrix = params["embedding"]["embedding"]
    own = params | {"embedding": params["embedding"] | {"source_embedding": matrix[::-1]}}
    arguments = Tokenizers(source, target), CONFIG, builders.one_device()
    models = (network.clone(shared=False),)
    translator, scorer = Translator(models, *arguments), Scorer(models, *arguments)

    (translation,) = translator.translate((own,), SOURCES[:1], prefixes=["DOG THE"])
    best = translation.hypotheses[0]
    (prefix,) = target.encode(["DOG THE"])
    assert best.text.startswith("DOG THE") and best.tokens[0][: len(prefix)] == prefix
    assert translation.sources == [source.encode(SOURCES[:1])[0] + [source.eos_id]]
    pairs = [(translation.sources[0], best.tokens[0])]
    ((_, batch),) = scorer._batches(pairs)
    log_probs = scorer._call(scorer._log_probs, (own,), batch)[0, : len(best.tokens[0])]
    assert log_probs.sum() == pytest.approx(best.log_prob, abs=1e-4)

    (score,) = scorer.score((own,), SOURCES[:1], ["DOG THE"])
    maps = scorer.attention((own,), SOURCES[0], "DOG THE")
    assert score.pieces == maps.target_pieces == target.pieces([*prefix, target.eos_id])
    assert maps.source_pieces == source.pieces(translation.sources[0])
    # The sources are looked up in the matrix of the source.
    ids = 319 - np.array(translation.sources[0])
    _, shared = both_of()
    ((_, batch),) = shared._batches([(ids.tolist(), [*prefix, target.eos_id])])
    expected = shared._call(shared._weights, (params,), batch).cross
    rows, columns = maps.cross.shape[2:]
    np.testing.assert_allclose(maps.cross, expected[:, 0, :, :rows, :columns], atol=1e-5)
