# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention Is All You Need, beside the code
#
# A walk through [the paper](https://arxiv.org/abs/1706.03762) (Vaswani et al., 2017) with the
# package `transformer_jax`. Each part names a section of the paper, shows the function of the
# package that implements it, and checks what it computes against a few lines of NumPy. Then a small
# model is trained, translates, and is looked into.
#
# **Needs** `pip install -e '.[notebook]'` in the root of the project, and `jupyter lab` here; or
# any other front end of Jupyter. No accelerator, no network.
#
# **Takes** about 6 minutes on two CPU cores which another training kept busy at the same time (5
# minutes of CPU time), 4 of them the training of section 5.2; and 20 minutes to read.
# `WALKTHROUGH_TINY=1` in the environment makes a model too small to learn anything, in about a
# minute: that is for tests.
#
# The source of this notebook is `walkthrough.py`; `jupytext --to ipynb walkthrough.py` makes the
# notebook of it.
#
# | section of the paper | module |
# |---|---|
# | 3.1 encoder and decoder stacks | `model/transformer.py` |
# | 3.2 attention, multi-head, masks | `model/attention.py`, `model/masks.py` |
# | 3.3 feed-forward; 3.4 embeddings; 3.5 positions; 5.4 dropout | `model/layers.py` |
# | 5.1 vocabulary and batches | `data/tokenizer.py`, `data/batch_plan.py`, `data/loader.py` |
# | 5.3 Adam and its learning rate | `optimizer.py` |
# | 5.4 label smoothing | `loss.py` |
# | 6.1 beam search, averaged checkpoints, BLEU | `decode.py`, `checkpoint.py`, `evaluate.py` |
# | table 3 | `presets.py` |

# %%
import html
import inspect
import json
import os
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

import transformer_jax as tj
from transformer_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)

TINY = os.environ.get("WALKTHROUGH_TINY") == "1"
key = jax.random.key(0)


def show(thing):
    """Prints the source of a function or class of the package."""
    print(f"# {inspect.getmodule(thing).__name__}\n{inspect.getsource(thing)}")


def heatmap(values, rows, columns, **options):
    """A matrix, its rows from top to bottom; labels may repeat."""
    trace = go.Heatmap(z=values, colorscale="Blues", **options)
    figure = go.Figure(trace, {"height": 420, "margin": {"t": 40, "b": 40}})
    for labels, update in ((columns, figure.update_xaxes), (rows, figure.update_yaxes)):
        escaped = [html.escape(str(label)) for label in labels]
        update(tickvals=list(range(len(labels))), ticktext=escaped)
    return figure.update_yaxes(autorange="reversed")


# %% [markdown]
# ## The experiment
#
# One `Config` says all of it. What is not named has the paper's value: `Config()` is the base
# model. This one is small enough for two CPU cores.

# %%
config = Config(
    run_directory="runs/walkthrough_tiny" if TINY else "runs/walkthrough",
    data=DataConfig(
        source_language="en",
        target_language="de",
        train=("given:train",),
        dev="given:dev",
        test="",
        max_length=48,
        tokens_per_update=480 if TINY else 2_304,
    ),
    tokenizer=TokenizerConfig(vocab_size=500 if TINY else 1_500),
    model=ModelConfig(
        num_layers=1 if TINY else 2,
        d_model=32 if TINY else 128,
        d_ff=64 if TINY else 512,
        num_heads=4,
    ),
    optimizer=OptimizerConfig(warmup_steps=60 if TINY else 400),
    train=TrainConfig(
        num_steps=90 if TINY else 600,
        log_interval=10 if TINY else 20,
        dev_loss_interval=30 if TINY else 100,
        dev_bleu_interval=0,
    ),
    checkpoint=CheckpointConfig(interval=30 if TINY else 50, keep_newest=3),
    decode=DecodeConfig(max_extra_length=8 if TINY else 50),
)

# %% [markdown]
# The text is a list of pairs: dates, numbers, currencies, units and names in English and German,
# built in memory from the Unicode CLDR. Any other list of pairs of strings would do as well.

# %%
from transformer_jax.data.cldr import build_corpus

corpus = build_corpus("en", "de")
given = {
    "train": corpus["train"][: 600 if TINY else None],
    "dev": corpus["dev"][: 20 if TINY else None],
}
test_pairs = corpus["test"][: 20 if TINY else None]
for source, target in given["train"][100:600:100]:
    print(f"{source}   →   {target}")

# %% [markdown]
# ## 5.1 Vocabulary and batches
#
# `prepare` does what comes before the first update: it looks whether the text is worth training on,
# trains a vocabulary of byte-pair encoding that both languages share, and keeps the text as
# numbers.

# %%
from transformer_jax.prepare import load_prepared, prepare
from transformer_jax.run_directory import RunDirectory

run = RunDirectory(config.run_directory)
prepare(config, run, print, given)
text = load_prepared(config, run, given)

# %% [markdown]
# Frequent words are one piece, rare ones several; `▁` stands for a space. Text comes back as it
# was.

# %%
tokenizer = text.tokenizers.source
sentences = ["Thursday, October 9, 1986", "Mozambique and Kazakhstan"]
for ids in tokenizer.encode(sentences):
    print(tokenizer.pieces(ids), ids)
assert tokenizer.decode(tokenizer.encode(sentences)) == sentences

# %% [markdown]
# The paper puts sentences of like length into a batch. Here several sentences share a row as well,
# which leaves less padding. Which pairs meet is computed from lengths, seed and epoch alone.

# %%
from transformer_jax.data.batch_plan import plan_epoch

lengths = text.train.source_lengths, text.train.target_lengths
for batching in ("bucketed", "packed"):
    data = replace(config.data, batching=batching)
    plan = plan_epoch(*lengths, data, seed=0, epoch=0, row_multiple=1)
    rows, source_length, target_length = plan.shapes.T
    size = (rows * (source_length + target_length)).sum()
    padding = 1 - sum(side.sum() for side in lengths) / size
    print(f"{batching:9} {plan.num_batches:4} batches an epoch, {padding:5.1%} padding")

# %% [markdown]
# A batch is six arrays: tokens of both sides, the position of each in its sentence, and the number
# of its sentence in the row; 0 is padding.

# %%
from transformer_jax.data.loader import Shard, collate

batch = collate(text.train, plan, 0, Shard(0, 1))
for name, array in batch.items():
    print(f"{name:18} {array.shape}  {array[0, :16]} ...")
assert (batch["targets_positions"][batch["targets_segments"] == 0] == 0).all()

# %% [markdown]
# ## 3.5 Positions
#
# $$PE_{(p, 2i)} = \sin(p / 10000^{2i / d}), \qquad PE_{(p, 2i + 1)} = \cos(p / 10000^{2i / d})$$

# %%
from transformer_jax.model.layers import sinusoid

show(sinusoid)
encoding = np.asarray(sinusoid(jnp.arange(50), 64))

angles = np.arange(50)[:, None] / 10_000 ** (np.arange(0, 64, 2) / 64)
expected = np.zeros((50, 64))
expected[:, 0::2], expected[:, 1::2] = np.sin(angles), np.cos(angles)
np.testing.assert_allclose(encoding, expected, atol=1e-5)

figure = heatmap(encoding, range(50), range(64))
figure.update_layout(xaxis_title="feature", yaxis_title="position")
figure.update_xaxes(tickmode="auto").update_yaxes(tickmode="auto")

# %% [markdown]
# Why sines: the product of the encodings of two positions depends on their distance alone, so
# attention can learn to look three tokens back wherever it stands.

# %%
products = encoding @ encoding.T
for distance in (0, 1, 3, 10):
    np.testing.assert_allclose(np.diagonal(products, distance), products[0, distance], atol=1e-4)
    print(f"distance {distance:2}: {products[0, distance]:6.2f} at every position")

# %% [markdown]
# ## 3.4 Embeddings
#
# Rows of one matrix, times $\sqrt{d_{model}}$, plus positions. The same matrix makes the logits at
# the end.

# %%
from transformer_jax.model.layers import Embedding
from transformer_jax.sharding import unbox

tokens = jnp.array([[5, 9, 5]])
embedding = Embedding(config.model, vocab_size=12)
weights = unbox(embedding.init(key, tokens, jnp.arange(3)[None], True))
embedded = embedding.apply(weights, tokens, jnp.arange(3)[None], deterministic=True)

matrix, d_model = np.asarray(weights["params"]["embedding"]), config.model.d_model
expected = matrix[tokens] * np.sqrt(d_model) + np.asarray(sinusoid(jnp.arange(3), d_model))
np.testing.assert_allclose(embedded, expected, atol=1e-5)
logits = embedding.apply(weights, embedded, method="logits")[:, :, :12]
np.testing.assert_allclose(logits, embedded @ matrix[:12].T, atol=1e-4)
print(f"{tokens.shape} tokens → {embedded.shape} embeddings → {logits.shape} logits")

# %% [markdown]
# ## 3.2.1 Scaled dot-product attention
#
# $$\mathrm{Attention}(Q, K, V) =
# \mathrm{softmax}\left(\frac{Q K^T}{\sqrt{d_k}}\right) V \qquad (1)$$

# %%
from transformer_jax.model.attention import Attention, KeysValues

show(Attention.__call__)

# %% [markdown]
# With one head, and an output map that changes nothing, this layer is equation 1. In NumPy:


# %%
def numpy_attention(q, k, v):
    scores = q @ k.T / np.sqrt(q.shape[-1])
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exps / exps.sum(axis=-1, keepdims=True)
    return weights @ v, weights


d_k = 8
q, k, v = np.random.default_rng(0).normal(size=(3, 5, d_k)).astype(np.float32)
one_head = ModelConfig(d_model=d_k, num_heads=1)
no_change = {"output": {"kernel": np.eye(d_k).reshape(1, d_k, d_k)}}
nothing_forbidden = jnp.zeros((1, 1, 5, 5))
output, weights = Attention(one_head).apply(
    {"params": no_change},
    q[None, None],  # [batch, heads, ...]
    KeysValues(k.T[None, None], v[None, None]),
    nothing_forbidden,
    deterministic=True,
)
expected, expected_weights = numpy_attention(q, k, v)
np.testing.assert_allclose(output[0], expected, atol=1e-5)
np.testing.assert_allclose(weights[0, 0], expected_weights, atol=1e-6)
print("weights, of which each row sums to 1:", np.round(expected_weights, 2), sep="\n")

# %% [markdown]
# Why $\sqrt{d_k}$: the product of two random vectors has a standard deviation of $\sqrt{d_k}$.
# Unscaled, one key would take nearly all of the weight, and the gradient of the softmax would
# vanish.

# %%
for width in (4, 64, 1024):
    q, k = np.random.default_rng(0).normal(size=(2, 1000, 16, width))
    products = np.einsum("nd,nkd->nk", q[:, 0], k)
    unscaled, scaled = (
        float(jax.nn.softmax(products / divisor).max(axis=1).mean())
        for divisor in (1, np.sqrt(width))
    )
    print(
        f"d_k {width:4}: products deviate by {products.std():4.1f}; the largest of 16 weights is",
        end=" ",
    )
    print(f"{unscaled:.2f} unscaled, {scaled:.2f} scaled, in the mean of 1,000 queries")

# %% [markdown]
# ## 3.2.2 Multi-head attention
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) W^O,
# \qquad \mathrm{head}_i = \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V)$$
#
# Keys and values have a module of their own, since decoding computes them once and keeps them.
# Where they are of the same positions as the queries, one product makes all three. More heads of
# less width cost the same: there are $4 d_{model}^2$ weights whatever $h$ is.

# %%
import flax.linen as nn

from transformer_jax.model.attention import ProjectKeysValues


class SelfAttention(nn.Module):
    """Attention of positions to themselves, as the layers have it."""

    config: ModelConfig

    def setup(self):
        self.keys_values, self.attention = ProjectKeysValues(self.config), Attention(self.config)

    def __call__(self, x):
        queries, keys_values = self.keys_values.with_queries(x, self.attention.query)
        return self.attention(queries, keys_values, nothing_forbidden, deterministic=True)[0]


small = ModelConfig(d_model=16, num_heads=4)
x = jax.random.normal(key, (1, 5, 16))
weights = unbox(SelfAttention(small).init(key, x))
output = SelfAttention(small).apply(weights, x)

layers = weights["params"]["attention"] | weights["params"]["keys_values"]
kernel = {name: np.asarray(layer["kernel"]) for name, layer in layers.items()}
expected = 0
for i in range(small.num_heads):
    q, k, v = (x[0] @ kernel[name][:, i] for name in ("query", "key", "value"))
    expected += numpy_attention(q, k, v)[0] @ kernel["output"][i]
np.testing.assert_allclose(output[0], expected, atol=1e-5)
print({name: array.shape for name, array in kernel.items()})
assert sum(array.size for array in kernel.values()) == 4 * small.d_model**2

# %% [markdown]
# ## 3.2.3 Masks
#
# A bias of $-10^{30}$ on a score makes its weight zero. In the decoder later positions are
# forbidden; in a packed row other sentences are too. In the picture a position has the name of the
# piece that it predicts; it reads the one before.

# %%
from transformer_jax.model import masks

show(masks.Mask)
show(masks.causal)
segments = batch["targets_segments"][:1]
allowed = np.asarray(masks.causal(segments).allowed())[0]
pieces = text.tokenizers.target.pieces(batch["targets"][0].tolist())
figure = heatmap(allowed.astype(int), pieces, pieces, showscale=False)
figure.update_layout(height=720, width=760, xaxis_title="may be attended to by the row")
figure.update_xaxes(tickfont_size=8).update_yaxes(tickfont_size=8)

# %% [markdown]
# ## 3.3 Feed-forward network; 3.1 residual connections
#
# $$\mathrm{FFN}(x) = \max(0, x W_1 + b_1) W_2 + b_2,
# \qquad \mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))$$

# %%
from transformer_jax.model.layers import FeedForward, Residual

show(FeedForward.__call__)
feed_forward, residual = FeedForward(small), Residual(small)
weights = unbox(feed_forward.init(key, x, True))
inner, outer = weights["params"]["inner"], weights["params"]["outer"]
y = feed_forward.apply(weights, x, True)
expected = np.maximum(0, x @ inner["kernel"] + inner["bias"]) @ outer["kernel"] + outer["bias"]
np.testing.assert_allclose(y, expected, atol=1e-5)

around, _ = residual.init_with_output(key, x, lambda x: (y, None), True)
total = np.asarray(x + y)
expected = (total - total.mean(-1, keepdims=True)) / total.std(-1, keepdims=True)
np.testing.assert_allclose(around[0], expected, atol=1e-4)

# %% [markdown]
# ## 3.1 The whole model, and table 3
#
# `PRESETS` has every row of the paper's table 3. The shapes of all weights are found without making
# one. The paper prints 65 million for base and 213 million for big, and speaks of a vocabulary of
# about 37,000. Base has 65 million with about 41,000 pieces, as most other rows of the table have;
# big has 213 with about 36,000.

# %%
from transformer_jax.config import MeshConfig
from transformer_jax.model.transformer import Transformer
from transformer_jax.presets import PRESETS
from transformer_jax.sharding import make_mesh
from transformer_jax.train_step import abstract_params


def millions(model, vocab_size):
    transformer = Transformer(model, vocab_size, bos_id=1)
    params = abstract_params(transformer, make_mesh(MeshConfig()))
    return sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6


print("          N  d_model  d_ff   h  |  million parameters with 37,000 pieces")
for row in ("base", "A3", "B1", "C1", "C4", "C7", "big"):
    model = PRESETS[row].model
    sizes = f"{model.num_layers:2} {model.d_model:8} {model.d_ff:5} {model.num_heads:3}"
    print(f"{row:8} {sizes}  |  {millions(model, 37_000):6.1f}")
assert round(millions(PRESETS["base"].model, 41_100)) == 65
assert round(millions(PRESETS["big"].model, 36_000)) == 213

# %% [markdown]
# Our small model, with random weights, on the batch from above. What stands later in a sentence,
# and what stands in another sentence of the row, must not change a prediction.

# %%
from transformer_jax.train_step import init_state

vocab_size, bos_id = text.tokenizers.vocab_size, text.tokenizers.target.bos_id
model = Transformer(config.model, vocab_size, bos_id)
params = init_state(config, model, make_mesh(MeshConfig()))[0].params
predict = jax.jit(lambda batch: model.apply({"params": params}, batch))
logits = np.asarray(predict(batch))
print(f"targets {batch['targets'].shape} → logits {logits.shape}")

first = batch["targets_segments"][0] == 1
changed = batch["targets"].copy()
changed[0, ~first] = 7  # all other sentences of the first row ...
changed[0, first.sum() - 2] = 7  # ... and the last token but the end mark of the first sentence
other = np.asarray(predict({**batch, "targets": changed}))
same = np.isclose(logits[0], other[0], atol=1e-4).all(axis=-1)
assert same[: first.sum() - 1].all() and not same[first.sum() - 1]
print("positions of the first sentence with the same prediction:", same[first])

# %% [markdown]
# ## 5.3 The learning rate
#
# $$lrate = d_{model}^{-0.5} \cdot \min(step^{-0.5},\ step \cdot warmup^{-1.5}) \qquad (3)$$

# %%
from transformer_jax.optimizer import learning_rate

show(learning_rate)
steps = np.arange(1, 20_001)
figure = go.Figure(layout={"xaxis_title": "update", "yaxis_title": "learning rate", "height": 380})
for name, settings, width in (
    ("base", OptimizerConfig(), 512),
    ("big", OptimizerConfig(), 1024),
    ("base, 8,000 updates of warm-up", OptimizerConfig(warmup_steps=8_000), 512),
):
    rates = np.asarray(learning_rate(steps, settings, width))
    assert steps[rates.argmax()] == settings.warmup_steps
    np.testing.assert_allclose(rates.max(), (width * settings.warmup_steps) ** -0.5, rtol=1e-5)
    figure.add_scatter(x=steps[::50], y=rates[::50], name=name)
figure

# %% [markdown]
# ## 5.4 Label smoothing and dropout
#
# The model is trained towards 0.9 for the right piece and 0.1 spread over all of the vocabulary.
# The loss is the cross entropy, as a sum and a count: means are taken once, after the last sum.

# %%
from transformer_jax.loss import loss_sums

show(loss_sums)
targets, real = batch["targets"], batch["targets_segments"] != 0
sums = loss_sums(jnp.asarray(logits), targets, batch["targets_segments"], 0.1, vocab_size)

kept = logits[:, :, :vocab_size].astype(np.float64)
log_probs = kept - np.log(np.exp(kept).sum(axis=-1, keepdims=True))
wanted = 0.9 * np.eye(vocab_size)[targets] + 0.1 / vocab_size
np.testing.assert_allclose(sums.loss, -(wanted * log_probs).sum(-1)[real].sum(), rtol=1e-4)
loss = sums.loss / sums.tokens
print(f"{sums.tokens} pieces, loss {loss:.2f}, ln(vocabulary) {np.log(vocab_size):.2f}")

# %% [markdown]
# Dropout sets a share of the numbers to zero and scales up the others, so that the mean stays.

# %%
from transformer_jax.model.layers import Dropout

dropped = Dropout(0.1).apply({}, jnp.ones((1000, 100)), False, rngs={"dropout": key})
print(f"{(dropped == 0).mean():.3f} are zero, the mean is {dropped.mean():.3f}")
assert abs((dropped == 0).mean() - 0.1) < 0.01 and abs(dropped.mean() - 1) < 0.01

# %% [markdown]
# ## 5.2 Training
#
# The same call as the command `train`. It goes on where it was interrupted (the stop button saves a
# checkpoint), and does nothing when all updates are done.

# %%
from transformer_jax.commands.train import train

status = train(config, given)
assert status == 0

# %%
log = [json.loads(line) for line in (run.path / "metrics.jsonl").open(encoding="utf-8")]
figure = go.Figure(
    layout={"xaxis_title": "update", "yaxis_title": "perplexity", "yaxis_type": "log"}
)
for split in ("train", "dev"):
    lines = [line for line in log if line["split"] == split and "perplexity" in line]
    x, y = ([line[name] for line in lines] for name in ("step", "perplexity"))
    figure.add_scatter(x=x, y=y, name=split)
    assert y[-1] < y[0]
figure.update_layout(height=380)

# %% [markdown]
# ## 6.1 Translation
#
# A run's directory is all that is needed. These phrases are made up here, so that none was trained
# on. A model that learned for some minutes gets some of them wrong.

# %%
trained = tj.load(config.run_directory)
phrases = [
    "Friday, May 17, 1991",
    "1,234.5 kilometers per hour",
    "Peru, Kenya, and Norway",
    "in 12 days or 3 hours",
]
seen = {source for source, _ in given["train"]}
assert not seen & set(phrases)
for phrase, translation in zip(phrases, trained.translate(phrases), strict=True):
    print(f"{phrase:30} {translation}")

# %% [markdown]
# How likely is a given translation? The log-probability of each piece, given the source and the
# pieces before it:

# %%
right, wrong = trained.score([phrases[0]] * 2, ["Freitag, 17. Mai 1991", "Freitag, 17. März 1991"])
for score in (right, wrong):
    print(f"{score.log_prob:7.2f} ", end="")
    print(
        *(f"{piece} {p:.2f}" for piece, p in zip(score.pieces, score.log_probs, strict=True)),
        sep="  ",
    )
assert TINY or right.log_prob > wrong.log_prob

# %% [markdown]
# ## Beam search, step by step
#
# The search keeps the $k$ likeliest prefixes, here 4, extends each by every piece, and keeps the
# best $k$ again. A hypothesis that ends competes with $\log P / lp$, where $lp = ((5 + length) /
# 6)^\alpha$ keeps short ones from winning too easily.
#
# `beam_search` of `decode.py` knows no model: it calls a function that scores the next piece, and
# hands it a cache whose rows follow the hypotheses. So a function that looks can be put in between:
# in its cache each hypothesis carries its pieces and its log-probability along. The loop of the
# search is compiled; `jax.debug.callback` tells Python what the function sees.

# %%
from transformer_jax.decode import SpecialIds, beam_search, length_penalty
from transformer_jax.model.transformer import empty_cache

show(length_penalty)


def watch_beam_search(loaded, sentence):
    """The result, and of every step the prefixes, their log-probabilities, those of ending."""
    model, variables = loaded.models[0], {"params": loaded.params[0]}
    tokenizer, settings = loaded.tokenizers.target, loaded.config.decode
    special = SpecialIds(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    source = jnp.array([[*loaded.tokenizers.source.encode([sentence])[0], special.eos]])
    remember = jax.jit(partial(model.apply, method="remember"))
    memory = remember(variables, source, jnp.ones_like(source))
    size, limit = settings.beam_size, source.shape[1] + settings.max_extra_length
    steps = []

    def look(index, prefix, log_prob, ending):
        steps.append((prefix[0, :, 1 : index + 1], log_prob[0], ending[0]))

    def step(newest, index, cache):
        past, prefix, log_prob, next_log_probs = cache
        chosen = jnp.take_along_axis(next_log_probs, newest[:, :, None], axis=2)[:, :, 0]
        prefix, log_prob = prefix.at[:, :, index].set(newest), log_prob + chosen
        logits, past = model.apply(variables, newest, index, memory, past, method="decode_step")
        next_log_probs = jax.nn.log_softmax(logits[:, :, : model.vocab_size])
        ending = log_prob + next_log_probs[:, :, special.eos]
        jax.debug.callback(look, index, prefix, log_prob, ending, ordered=True)
        return logits, (past, prefix, log_prob, next_log_probs)

    cache = (
        empty_cache(model.config, 1, 1, limit),  # of the empty prefix, which is there once
        jnp.zeros((1, 1, limit), int),
        jnp.zeros((1, 1)),
        jnp.zeros((1, 1, model.vocab_size)),
    )
    options = {"alpha": settings.length_penalty, "max_length": limit, "num_certain": 1}
    options |= {"beam_size": size, "special": special}
    result = beam_search(step, cache, jnp.array([limit]), **options)
    jax.effects_barrier()  # until all is told
    return result, steps


# %% [markdown]
# Before each step: the hypotheses alive with their log-probabilities; right of them, what they
# would score if they ended now. The search stops when nothing alive can beat the best that ended.

# %%
sentence = phrases[3]
result, steps = watch_beam_search(trained, sentence)
alpha, tokenizer = config.decode.length_penalty, trained.tokenizers.target
ended = []
for index, (prefixes, log_probs, ending) in enumerate(steps):
    penalty = float(length_penalty(index + 1, alpha))
    print(f"{index} pieces, length penalty with the end mark {penalty:.2f}")
    for prefix, log_prob, end in zip(prefixes, log_probs, ending, strict=True):
        ended.append((end / penalty, index, tokenizer.decode([prefix.tolist()])[0]))
        pieces = " ".join(tokenizer.pieces(prefix.tolist()))
        print(
            f"  {log_prob:8.2f}  {pieces:50} ends: {end:8.2f} / {penalty:.2f} = {end / penalty:.2f}"
        )
score, index, winner = max(ended)
print(f"\nbest: {winner!r}, {score:.2f}, ended after {index} pieces")

# %% [markdown]
# What won here is what the package finds, with its search compiled:

# %%
(found,) = trained.translator.translate(trained.params, [sentence], num_best=4)
for hypothesis in found.hypotheses:
    print(f"{hypothesis.score:7.3f}  {hypothesis.text}")
assert found.text == winner
np.testing.assert_allclose([score, result.scores[0, 0]], found.score, atol=1e-3)

# %% [markdown]
# ## Attention: what an ambiguous word looks at
#
# *Russian* has three readings in this corpus: the language (*Russisch*), and an adjective that
# German inflects, of one ruble (*Russischer Rubel*) or of several (*Russische Rubel*). Nothing but
# the words around it tells which.

# %%
ambiguous = "Russian"
readings = {
    "Danish, Russian, and Urdu": "Russisch,",
    "Danish Krone, Russian Ruble, and Euro": "Russischer",
    "48.36 Russian rubles": "Russische",
}
assert not seen & set(readings)
translations = trained.translate(list(readings))
for source, translation, wanted in zip(readings, translations, readings.values(), strict=True):
    print(f"{source:40} {translation}")
    assert TINY or wanted.strip(",") in translation.replace(",", "").split()

# %% [markdown]
# `attention` gives the weights of every layer and head. As in the paper's figures 3 to 5, these are
# those of the encoder: how much *Russian* attends to each piece of its sentence, as one heat map a
# sentence. Some head looks at the word that settles the reading, *Ruble*.

# %%
maps = [trained.attention(*pair) for pair in zip(readings, translations, strict=True)]


def rows_of(word, pieces):
    """Where the pieces of a word stand."""
    number = np.cumsum([piece.startswith("▁") for piece in pieces])
    words = {n: "".join(np.array(pieces)[number == n]).strip("▁,") for n in set(number)}
    return [row for row, n in enumerate(number) if words[n] == word]


figure = make_subplots(len(maps), 1, subplot_titles=list(readings), vertical_spacing=0.12)
num_layers, num_heads = config.model.num_layers, config.model.num_heads
names = [f"layer {i + 1} head {j + 1}" for i in range(num_layers) for j in range(num_heads)]
for row, one in enumerate(maps, start=1):
    np.testing.assert_allclose(one.encoder.sum(axis=-1), 1, atol=1e-5)
    weights = one.encoder[:, :, rows_of(ambiguous, one.source_pieces)].mean(axis=2)
    weights = weights.reshape(len(names), -1)
    head, place = np.unravel_index(weights.argmax(), weights.shape)
    print(f"{names[head]}: {weights[head, place]:.2f} on {one.source_pieces[place]}")
    part = heatmap(weights, names, one.source_pieces, zmin=0, zmax=1)
    figure.add_trace(part.data[0], row, 1)
    figure.update_xaxes(part.layout.xaxis, row=row, col=1)
    figure.update_yaxes(part.layout.yaxis, row=row, col=1)
ruble = maps[1].encoder[:, :, rows_of(ambiguous, maps[1].source_pieces)]
ruble = ruble[:, :, :, rows_of("Ruble", maps[1].source_pieces)].sum(axis=-1)
assert TINY or ruble.max() > 0.3
figure.update_traces(showscale=False).update_layout(height=900)

# %% [markdown]
# The paper's way to draw it: on the left the word that looks, on the right what it looks at; a
# colour is a head, the width of a line a weight. The layer is the one that looks at *Ruble* most.

# %%
from plotly.colors import qualitative

one, layer = maps[1], int(ruble.max(axis=(1, 2)).argmax())
pieces = one.source_pieces
figure = go.Figure(layout={"height": 560, "width": 620, "title": f"encoder, layer {layer + 1}"})
for head in range(num_heads):
    for query in rows_of(ambiguous, pieces):
        for place, weight in enumerate(one.encoder[layer, head, query]):
            line = {"width": 8 * float(weight), "color": qualitative.Plotly[head]}
            figure.add_scatter(
                x=[0, 1], y=[query, place + 0.12 * head], line=line, mode="lines", showlegend=False
            )
options = {"y": list(range(len(pieces))), "text": [html.escape(piece) for piece in pieces]}
options |= {"mode": "text", "showlegend": False}
figure.add_scatter(x=[0] * len(pieces), textposition="middle left", **options)
figure.add_scatter(x=[1] * len(pieces), textposition="middle right", **options)
figure.update_xaxes(visible=False, range=[-0.6, 1.6])
figure.update_yaxes(visible=False, autorange="reversed")

# %% [markdown]
# The decoder looks at the source when it predicts a piece: the rows are the pieces predicted. The
# mean over the heads of the last layer is a rough alignment of words.

# %%
one = maps[1]
np.testing.assert_allclose(one.cross.sum(axis=-1), 1, atol=1e-5)
heatmap(one.cross[-1].mean(axis=0), one.target_pieces, one.source_pieces)

# %% [markdown]
# ## 6.1 Checkpoints and BLEU
#
# The paper averages the weights of the last checkpoints. `tj.load` takes `newest`, `best`, a step
# or `average:N`. The mean is what it says:

# %%
averaged = tj.load(config.run_directory, checkpoint="average:3")
print(averaged.checkpoint)
members = [int(step) for step in averaged.checkpoint.removeprefix("average of steps ").split(", ")]
singles = [tj.load(config.run_directory, checkpoint=step).params[0] for step in members]
mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *singles)
jax.tree.map(
    lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), averaged.params[0], mean
)
assert len(members) == 3

# %% [markdown]
# BLEU of the held-out pairs, in two protocols: sacreBLEU's of raw text, which compares between
# papers, and that of the paper's own tables, of tokenised text. Each with its signature, without
# which a score says little.

# %%
from transformer_jax.evaluate import make_metrics, scores

sources, references = zip(*test_pairs, strict=True)
metrics = make_metrics("de", ["BLEU", "paper_BLEU"])
bleu = {}
for loaded in (trained, averaged):
    for name, score in scores(metrics, loaded.translate(sources), {"test": references}).items():
        bleu[loaded.checkpoint, name] = score.score
        print(f"{score.score:6.2f}  {name:10} {loaded.checkpoint}  ({score.signature})")
assert TINY or min(bleu.values()) > 80

# %% [markdown]
# ## Further
#
# - Text of your own: `given` takes any pairs; `data.train` takes files, tfds and more (README).
# - The paper's models: `transformer-jax train experiments/table3.py:base`.
# - `transformer-jax evaluate runs/walkthrough --sources FILE --references FILE` scores from the
#   command line, and compares runs with a test of significance.
