"""From sentences to sentences, with a model of random weights and a real tokenizer."""

import functools

import builders
import jax
import numpy as np
import pytest
from builders import CORPUS, small_config

from transformer_jax.config import DecodeConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer
from transformer_jax.translate import Source, Translator, batches, padded_length

SENTENCES = [CORPUS[7], "a tree", CORPUS[40] + " " + CORPUS[90], "", CORPUS[3], "x", CORPUS[200]]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return builders.corpus_tokenizer()


@pytest.fixture
def model():
    return builders.decided_model()


def translate(model, tokenizer, sentences, devices=1, **decode):
    network, params = model
    options = {"max_extra_length": 5, "beam_size": 3} | decode
    translator = translator_of(network, tokenizer, devices, DecodeConfig(**options))
    return translator.translate((params,), sentences)


@functools.cache
def translator_of(network, tokenizer, devices, config) -> Translator:
    """One for all tests with the same options: its shapes are compiled once."""
    mesh = builders.mesh_of(data=devices)
    return Translator((network,), builders.both(tokenizer), config, mesh)


def greedy(model, tokenizer, sentence, extra):
    """The likeliest token at every position by the full forward pass, without any cache."""
    network, params = model
    apply = jax.jit(network.apply)
    source = [*tokenizer.encode([sentence])[0], tokenizer.eos_id]
    target = []
    while len(target) < len(source) + extra:
        pair = (source, [*target, tokenizer.eos_id])
        batch = builders.make_batch([[pair]], 64, 64)
        logits = np.array(apply({"params": params}, batch)[0, len(target)])
        logits[[tokenizer.pad_id, tokenizer.bos_id, tokenizer.unk_id]] = -np.inf
        target.append(int(logits.argmax()))
        if target[-1] == tokenizer.eos_id:
            return target, True
    return target, False


def test_a_beam_of_one_is_greedy(model, tokenizer):
    translations = translate(model, tokenizer, SENTENCES, beam_size=1)
    for sentence, translation in zip(SENTENCES, translations, strict=True):
        if sentence:
            tokens, finished = greedy(model, tokenizer, sentence, extra=5)
            assert translation.text == tokenizer.decode([tokens])[0]
            assert translation.finished == finished


@pytest.mark.parametrize("beam_size", [2, 5])
def test_the_score_is_the_log_probability_of_the_forced_translation(model, tokenizer, beam_size):
    """E13, E15: recomputed by the full forward pass over every hypothesis' own tokens."""
    network, params = model
    apply = jax.jit(network.apply)
    config = DecodeConfig(max_extra_length=5, beam_size=beam_size)
    translator = translator_of(network, tokenizer, 1, config)
    encoded = tokenizer.encode([*CORPUS[:90:30], "a tree", "x"])
    sources = [[*ids, tokenizer.eos_id] for ids in encoded]
    found = translator._start((params,), [Source(ids) for ids in sources], rows=8, length=32)
    for row, source in enumerate(sources):
        for beam in range(beam_size):
            tokens = [int(token) for token in found.tokens[row, beam] if token != tokenizer.pad_id]
            batch = builders.make_batch([[(source, tokens)]], 32, 37)
            log_p = np.asarray(jax.nn.log_softmax(apply({"params": params}, batch)[0]))
            total = log_p[np.arange(len(tokens)), tokens].sum()
            assert found.log_probs[row, beam] == pytest.approx(total, abs=1e-4)
            penalty = ((5 + len(tokens)) / 6) ** 0.6
            assert found.scores[row, beam] == pytest.approx(total / penalty, abs=1e-4)


@pytest.fixture(scope="module")
def alone():
    """Each sentence translated by itself on one device."""
    model, tokenizer = builders.decided_model(), builders.corpus_tokenizer()
    translations = translate(model, tokenizer, SENTENCES, tokens_per_batch=1)
    return dict(zip(SENTENCES, translations, strict=True))


@pytest.mark.parametrize(
    ("tokens_per_batch", "devices", "bucket"), [(4096, 1, 0), (1, 4, 0), (4096, 4, 48)]
)
def test_batches_neighbours_order_buckets_and_devices_change_no_translation(
    model, tokenizer, alone, monkeypatch, tokens_per_batch, devices, bucket
):
    """C03, E09: lines come back in the order given, each as if it were alone."""
    monkeypatch.setattr(
        "transformer_jax.translate.padded_length", lambda n: max(padded_length(n), bucket)
    )
    random = np.random.default_rng(1)
    long, *short = sorted(filter(None, SENTENCES), key=len, reverse=True)
    for _ in range(4):
        # As many of each length every time: other numbers of rows are other programs.
        sentences = random.permutation([long, "", *random.choice(short, 5)]).tolist()
        together = translate(
            model, tokenizer, sentences, devices, tokens_per_batch=tokens_per_batch
        )
        for sentence, translation in zip(sentences, together, strict=True):
            expected = alone[sentence]
            assert (translation.text, translation.finished) == (expected.text, expected.finished)
            assert translation.score == pytest.approx(expected.score, abs=1e-5)


def test_learned_positions_bound_the_parts_and_the_translation(model, tokenizer):
    """C05: a source beyond the table goes in parts; a translation that reaches its end is cut."""
    config = small_config(positions="learned", max_positions=8)
    network = Transformer(config.model, tokenizer.vocab_size, tokenizer.bos_id)
    positions = np.random.default_rng(0).standard_normal((8, 16), np.float32)
    params = with_embedding(model[1], positions=positions)
    (ids,) = tokenizer.encode([CORPUS[0]])
    (translation,) = translate((network, params), tokenizer, [CORPUS[0]])
    assert len(translation.sources) == -(-len(ids) // 7) > 1
    assert np.isfinite(translation.score)
    assert len(tokenizer.encode([translation.text])[0]) <= 8 * len(translation.sources)


def with_embedding(params, **arrays):
    """Weights with these in place of, or beside, those of the embedding."""
    return params | {"embedding": params["embedding"] | arrays}


def test_prefixes_must_fit_the_sentences_and_the_model(tokenizer):
    config = small_config(positions="learned", max_positions=8)
    network = Transformer(config.model, tokenizer.vocab_size, tokenizer.bos_id)
    translator = translator_of(network, tokenizer, 1, DecodeConfig(beam_size=3))
    with pytest.raises(UserError, match=r"prefix of line 12 has .* model\.max_positions = 8"):
        translator.translate((None,), ["a", "a"], prefixes=["", CORPUS[0]], first=10)
    with pytest.raises(UserError, match="1 prefixes for 2 sentences"):
        translator.translate((None,), ["a", "a"], prefixes=["a"])
    with pytest.raises(UserError, match=r"decode\.beam_size, which is 3"):
        translator.translate((None,), ["a"], num_best=4)


def test_a_prefix_is_that_of_the_first_part(model, tokenizer):
    """Of a source that goes in parts; the parts after it are translated as without it."""
    options = {"max_extra_length": 2, "beam_size": 2, "max_source_length": 8}
    translator = translator_of(model[0], tokenizer, 1, DecodeConfig(**options))
    free, _ = translator.translate((model[1],), [CORPUS[0], "x"])
    forced, _ = translator.translate((model[1],), [CORPUS[0], "x"], prefixes=["a tree ", ""])
    (prefix,) = tokenizer.encode(["a tree"])
    first, *others = forced.hypotheses[0].tokens
    assert first[: len(prefix)] == prefix
    assert others == free.hypotheses[0].tokens[1:] and others


def test_a_translation_may_be_asked_to_have_some_length(model, tokenizer):
    """E06: a model that ends at once, whatever the source."""
    network = Transformer(
        small_config(output_bias=True).model, tokenizer.vocab_size, tokenizer.bos_id
    )
    bias = np.zeros(tokenizer.vocab_size, np.float32)
    bias[tokenizer.eos_id] = 50
    params = with_embedding(model[1], output_bias=bias)
    for min_length in (0, 3):
        config = DecodeConfig(beam_size=3, min_length=min_length, length_penalty=0.0)
        translator = translator_of(network, tokenizer, 1, config)
        row = Source([5, tokenizer.eos_id])
        tokens = translator._start((params,), [row], rows=1, length=2).tokens[0, 0]
        assert list(np.flatnonzero(tokens == tokenizer.eos_id)) == [min_length]


def test_blank_lines_are_blank_and_inner_line_feeds_are_spaces(model, tokenizer):
    """A07, A18."""
    blank = translate(model, tokenizer, ["", "   ", "\t", "\n"])
    assert [translation.text for translation in blank] == [""] * 4
    texts = [t.text for t in translate(model, tokenizer, ["a tree", "a\ntree", "a tree\r\n"])]
    assert texts[0] == texts[1] == texts[2]
    assert not any("\n" in text for text in texts)
    assert translate(model, tokenizer, []) == []


def test_a_translation_at_the_limit_is_marked(model, tokenizer):
    """E12, E17: a model that cannot end runs to its limit, and says so."""
    network, params = model
    embedding = params["embedding"]["embedding"]
    unlike = embedding.copy()
    unlike[tokenizer.eos_id] = -embedding[300]
    never = jax.tree.map(lambda x: x, with_embedding(params, embedding=unlike))
    never["decoder_layers_1"]["ff_residual"]["LayerNorm_0"]["bias"] = 50 * embedding[300]
    translation, *_ = translate((network, never), tokenizer, ["the old dog"] * 5, beam_size=1)
    limit = len(tokenizer.encode(["the old dog"])[0]) + 1 + 5
    assert not translation.finished
    assert translation.text == tokenizer.decode([[300] * limit])[0]
    assert np.isfinite(translation.score)


def test_progress_is_told_and_may_stop_the_work(model, tokenizer):
    """G09."""
    network, params = model
    config = DecodeConfig(max_extra_length=5, beam_size=3, tokens_per_batch=1)
    translator = translator_of(network, tokenizer, 1, config)
    told = []
    translator.translate((params,), SENTENCES, told.append)
    assert told[0] == 1 and told[-1] == len(SENTENCES) and told == sorted(told)

    def stop(done: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        translator.translate((params,), SENTENCES, stop)


def test_a_source_longer_than_any_trained_on_is_translated_whole(model, tokenizer):
    """C05, E11: positions have no end; the neighbours of a long line are not changed by it."""
    line = " ".join(CORPUS[:12])
    together = translate(model, tokenizer, ["a tree", line, *["the dog"] * 4], beam_size=1)
    alone, *_ = translate(model, tokenizer, ["a tree"] * 5, beam_size=1)
    assert together[0].text == alone.text
    assert len(tokenizer.encode([line])[0]) > 64
    assert len(together[1].sources) == 1
    assert np.isfinite(together[1].score)


def test_a_source_of_any_length_is_translated_in_parts(model, tokenizer):
    """A25, E11: memory is that of `max_source_length`; a line in is a line out."""
    (ids,) = tokenizer.encode([CORPUS[0]])
    words = tokenizer.decode([ids[i : i + 7] for i in range(0, len(ids), 7)])
    assert len(words) > 1
    options = {"max_extra_length": 2, "beam_size": 2, "max_source_length": 8}
    before, whole, blank = translate(model, tokenizer, ["x", CORPUS[0], ""], **options)
    parts = [len(translation.sources) for translation in (before, whole, blank)]
    assert parts == [1, len(words), 0]
    network, params = model
    translator = translator_of(network, tokenizer, 1, DecodeConfig(**options))
    rows = [Source([*ids[i : i + 7], tokenizer.eos_id]) for i in range(0, len(ids), 7)]
    tokens = translator._start((params,), rows, rows=4, length=16).tokens[: len(rows), 0]
    expected = tokenizer.decode(tokens.tolist())
    assert whole.text == " ".join(expected)


@pytest.mark.parametrize("num_shards", [1, 4])
@pytest.mark.parametrize("num_sources", [1, 3, 16, 17, 100, 250, 257, 600, 5_000])
def test_batches_of_a_length_are_few_full_and_of_one_shape(num_sources, num_shards):
    config = DecodeConfig(tokens_per_batch=4_096)
    found = list(batches({n: 16 for n in range(num_sources)}, config, num_shards))
    assert [key for keys, _, _ in found for key in keys] == list(range(num_sources))
    assert len(found) == -(-num_sources // 256), "no more than the limit asks for"
    (rows,) = {rows for _, rows, _ in found}
    assert rows % num_shards == 0
    assert len(found) * rows < max(1.2 * num_sources, num_sources + 16 * len(found))


def test_a_batch_that_no_device_holds_is_told_before_it_runs(model, tokenizer, monkeypatch):
    monkeypatch.setattr("transformer_jax.translate.device_memory", lambda: 10_000)
    network, params = model
    both, mesh = builders.both(tokenizer), builders.mesh_of(data=1)
    translator = Translator((network,), both, DecodeConfig(), mesh)
    with pytest.raises(UserError, match=r"need .* GiB a device.*lower decode.tokens_per_batch"):
        translator.translate((params,), ["a tree"])
