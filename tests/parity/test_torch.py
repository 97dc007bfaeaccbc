"""The model against torch.nn.Transformer, and the loss against torch.nn.CrossEntropyLoss."""

import dataclasses
import math

import builders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import BOS, PAD, VOCAB_SIZE, make_batch, mesh_of, random_pairs
from closeness import assert_close, assert_gradients_close

from transformer_jax import sharding
from transformer_jax.config import TrainConfig
from transformer_jax.loss import loss_sums
from transformer_jax.train_step import init_state, make_train_step

torch = pytest.importorskip("torch", reason="pip install -r tests/requirements-parity.txt")
nn = torch.nn

PAIRS = random_pairs(seed=11, count=7)
PADDED = make_batch([[pair] for pair in PAIRS], 11, 13)


def torch_transformer(config):
    """torch.nn.Transformer; its post-norm stacks end with one more norm, which is left out."""
    options = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": config.norm == "pre",
    }
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**options), config.num_layers, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), config.num_layers)
    if config.norm == "pre":
        encoder.norm, decoder.norm = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
    torch.manual_seed(0)
    model = nn.Transformer(**options, custom_encoder=encoder, custom_decoder=decoder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(spread * torch.randn(parameter.shape))
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
    return model


def ported(config, state):
    """Our parameters of the layers from weights, or gradients, by the names of PyTorch."""
    state = {name: np.asarray(value) for name, value in state.items()}
    d_model, heads = config.d_model, (config.num_heads, config.d_model // config.num_heads)

    def attention(name):
        weights = [
            w.T.reshape(d_model, *heads) for w in np.split(state[f"{name}.in_proj_weight"], 3)
        ]
        biases = [b.reshape(heads) for b in np.split(state[f"{name}.in_proj_bias"], 3)]
        query, key, value = ({"kernel": w, "bias": b} for w, b in zip(weights, biases, strict=True))
        output = state[f"{name}.out_proj.weight"].T.reshape(*heads, d_model)
        output = {"kernel": output, "bias": state[f"{name}.out_proj.bias"]}
        return {"query": query, "output": output}, {"key": key, "value": value}

    def linear(name):
        return {"kernel": state[f"{name}.weight"].T, "bias": state[f"{name}.bias"]}

    def norm(name):
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    params = {}
    for stack, names in (
        ("encoder", {"self_attn": "self"}),
        ("decoder", {"self_attn": "self", "multihead_attn": "cross"}),
    ):
        for number in range(config.num_layers):
            prefix = f"{stack}.layers.{number}"
            layer = {}
            for theirs, ours in names.items():
                layer[f"{ours}_attention"], layer[f"{ours}_keys_values"] = attention(
                    f"{prefix}.{theirs}"
                )
            for place, ours in enumerate([*names.values(), "ff"], start=1):
                layer[f"{ours}_residual"] = {"LayerNorm_0": norm(f"{prefix}.norm{place}")}
            layer["feed_forward"] = {
                "inner": linear(f"{prefix}.linear1"),
                "outer": linear(f"{prefix}.linear2"),
            }
            params[f"{stack}_layers_{number}"] = layer
        if config.norm == "pre":
            params[f"{stack}_norm"] = norm(f"{stack}.norm")
    return params


def positions(length, d_model):
    """Section 3.5, number by number."""
    table = torch.zeros(length, d_model)
    for position in range(length):
        for i in range(0, d_model, 2):
            angle = position / 10_000 ** (i / d_model)
            table[position, i], table[position, i + 1] = math.sin(angle), math.cos(angle)
    return table


def torch_logits(model, embedding, batch):
    """Embeddings, positions, masks and the tied output around torch.nn.Transformer."""
    inputs, targets = (torch.tensor(np.asarray(batch[side])) for side in ("inputs", "targets"))
    shifted = torch.cat([torch.full((len(targets), 1), BOS), targets[:, :-1]], dim=1)
    d_model = embedding.shape[1]

    def embed(tokens):
        return embedding[tokens] * d_model**0.5 + positions(tokens.shape[1], d_model)

    length = targets.shape[1]
    padding = torch.tensor(np.asarray(batch["inputs_segments"]) == 0)
    x = model(
        embed(inputs),
        embed(shifted),
        tgt_mask=torch.triu(torch.ones(length, length, dtype=bool), diagonal=1),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
        tgt_key_padding_mask=torch.tensor(np.asarray(batch["targets_segments"]) == 0),
    )
    return x @ embedding.T


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_and_gradients_are_those_of_torch(norm):
    config = builders.small_config(norm=norm, attention_bias=True, layer_norm_epsilon=1e-5)
    theirs = torch_transformer(config.model)
    embedding = torch.randn(VOCAB_SIZE, config.model.d_model) * config.model.d_model**-0.5
    embedding.requires_grad_()
    network = builders.small_model(config)
    params = ported(config.model, {k: v.detach() for k, v in theirs.state_dict().items()})
    params["embedding"] = {"embedding": embedding.detach().numpy()}
    params = jax.tree.map(jnp.asarray, params)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, builders.small_params(config))

    real = np.asarray(PADDED["targets_segments"]) != 0
    logits = torch_logits(theirs, embedding, PADDED)
    ours = np.asarray(network.apply({"params": params}, PADDED))
    assert_close(ours[real], logits.detach().numpy()[real], 1e-5)

    nn.functional.cross_entropy(
        logits[torch.tensor(real)],
        torch.tensor(np.asarray(PADDED["targets"])[real]).long(),
        label_smoothing=0.1,
        reduction="sum",
    ).backward()

    def loss(params):
        logits = network.apply({"params": params}, PADDED)
        return loss_sums(logits, PADDED["targets"], PADDED["targets_segments"], 0.1).loss

    gradients = jax.device_get(jax.jit(jax.grad(loss))(params))
    their_gradients = ported(config.model, {k: p.grad for k, p in theirs.named_parameters()})
    their_gradients["embedding"] = {"embedding": embedding.grad.numpy()}
    assert_gradients_close(gradients, their_gradients)


# --- The loss -----------------------------------------------------------------------------------


def torch_loss(logits, targets, smoothing):
    """Sum over the tokens that are no padding."""
    criterion = nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=PAD, reduction="sum")
    return criterion(
        torch.tensor(np.array(logits)).double().reshape(-1, VOCAB_SIZE),
        torch.tensor(np.array(targets)).long().reshape(-1),
    ).item()


NUM_TOKENS = sum(len(target) for _, target in PAIRS)
BATCHES = {
    "padded": PADDED,
    "packed": make_batch([PAIRS[:4], PAIRS[4:], []], 40, 44),
    "with filler rows": make_batch([[], *([pair] for pair in PAIRS)], 11, 13),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_the_loss_is_that_of_torch(batch, smoothing):
    config = builders.small_config()
    logits = builders.small_model(config).apply({"params": builders.small_params(config)}, batch)
    sums = loss_sums(logits, batch["targets"], batch["targets_segments"], smoothing)
    assert sums.tokens == NUM_TOKENS
    assert float(sums.loss) == pytest.approx(torch_loss(logits, batch["targets"], smoothing))
    assert float(sums.nll) == pytest.approx(torch_loss(logits, batch["targets"], 0.0))


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
@pytest.mark.parametrize("num_parts", [1, 2, 8])
def test_the_loss_of_an_update_on_many_devices_and_in_parts_is_that_of_torch(
    num_devices, num_parts
):
    """The sums that the train step reports, padded and packed: one sum, one count."""
    config = builders.small_config(num_layers=1)
    config = dataclasses.replace(config, train=TrainConfig(num_micro_batches=num_parts))
    model, mesh = builders.small_model(config), mesh_of(data=num_devices)
    state, shardings = init_state(config, model, mesh)
    where = sharding.batch_sharding(mesh)
    step = jax.jit(make_train_step(config, model), in_shardings=(shardings, where))
    num_rows = max(8, num_devices * num_parts)
    layouts = {"padded": [[pair] for pair in PAIRS], "packed": [PAIRS[:2], PAIRS[2:5], PAIRS[5:]]}
    params = jax.device_put(state.params, jax.devices()[0])
    logits = jax.jit(model.apply)({"params": params}, PADDED)
    expected = torch_loss(logits, PADDED["targets"], config.loss.label_smoothing)
    for rows in layouts.values():
        batch = make_batch([*rows, *[[]] * (num_rows - len(rows))], 40, 44)
        _, metrics = step(state, jax.device_put(batch, where))
        assert metrics.sums.tokens == NUM_TOKENS
        assert float(metrics.sums.loss) == pytest.approx(expected)
