"""Which implementation computes attention, and that cuDNN is handed what it can compute.

No GPU is needed: one is made up where the choice is tested, cuDNN's kernel is stood in for by XLA's
of the same function, and the program for a GPU is made, up to the call of the kernel, but not run.
"""

import re
from collections import Counter
from functools import partial
from types import SimpleNamespace

import builders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import BOS, EOS, make_batch, random_pairs, small_config, small_model
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.config import DecodeConfig, ModelConfig
from transformer_jax.data.batch_plan import BatchShape
from transformer_jax.decode import SpecialIds
from transformer_jax.errors import UserError
from transformer_jax.model import masks
from transformer_jax.model.attention import (
    KeysValues,
    _attend,
    attend_in_chunks,
    bias_or_mask,
    exp_and_sum,
    use_cudnn,
)
from transformer_jax.train_step import abstract_batch, abstract_params, batch_loss
from transformer_jax.translate import search

FITTING = {"dtype": "bfloat16", "d_model": 32, "num_heads": 4}
CONFIG = small_config(**FITTING, num_layers=1)
MODEL = small_model(CONFIG)
H200 = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", compute_capability="9.0")
OTHERS = {
    "CPU": SimpleNamespace(platform="cpu", device_kind="cpu"),
    "TPU": SimpleNamespace(platform="tpu", device_kind="TPU v5"),
    "AMD": SimpleNamespace(
        platform="gpu", device_kind="AMD Instinct MI300X", compute_capability="gfx942"
    ),
    "Turing": SimpleNamespace(
        platform="gpu", device_kind="NVIDIA GeForce RTX 2080", compute_capability="7.5"
    ),
}
UNFIT = [
    {"dtype": "float32"},
    {"attention_dropout_rate": 0.1},
    {"d_k": 16},
    {"d_v": 16},
    {"d_k": 12, "d_v": 12},
    {"d_k": 136, "d_v": 136},
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exponentials_over_their_sums_are_a_softmax(dtype: str) -> None:
    """Equation 1 and its gradient, against JAX's softmax in float32."""
    keys = jax.random.split(jax.random.key(0), 3)
    scores = 4 * jax.random.normal(keys[0], (2, 3, 5, 7))
    scores = scores.at[0, :, :, 4:].add(-1e30).at[1].add(1e4)
    values, of_result = (jax.random.normal(key, (2, 3, 5, 7)) for key in keys[1:])

    def in_parts(scores: jax.Array, values: jax.Array) -> jax.Array:
        exps, sums = exp_and_sum(scores, dtype)
        assert exps.dtype == dtype
        return (exps * values).sum(axis=-1) / sums

    def whole(scores: jax.Array, values: jax.Array) -> jax.Array:
        return (jax.nn.softmax(scores) * values).sum(axis=-1)

    of_result = of_result[..., 0]
    (mine, my_vjp), (other, other_vjp) = (jax.vjp(f, scores, values) for f in (in_parts, whole))
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(mine, other, atol=tolerance)
    for my_gradient, gradient in zip(my_vjp(of_result), other_vjp(of_result), strict=True):
        np.testing.assert_allclose(my_gradient, gradient, atol=tolerance)


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_jax.model.attention.has_cudnn_attention", lambda device: True)


@pytest.mark.usefixtures("on_gpus")
def test_on_gpus_cudnn_computes_what_it_can() -> None:
    assert use_cudnn(ModelConfig(**FITTING), 8, 6)
    assert use_cudnn(ModelConfig(**FITTING, attention="cudnn"), 8, 6)
    assert not use_cudnn(ModelConfig(**FITTING, attention="xla"), 8, 6)
    for lengths in ((7, 6), (8, 5), (1, 8)):
        assert not use_cudnn(ModelConfig(**FITTING), *lengths)
    assert not use_cudnn(ModelConfig(**FITTING, attention="cudnn"), 1, 8), "making weights"
    with pytest.raises(UserError, match=r"model\.attention is 'cudnn': .* 7 and 6 tokens"):
        use_cudnn(ModelConfig(**FITTING, attention="cudnn"), 7, 6)


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize("changes", UNFIT, ids=str)
def test_what_cudnn_cannot_compute_is_known_at_once(changes: dict[str, object]) -> None:
    assert not use_cudnn(ModelConfig(**(FITTING | changes)), 8, 8)
    with pytest.raises(UserError, match=r"^model\.attention is 'cudnn': .* 'xla' where .+$"):
        ModelConfig(**(FITTING | changes), attention="cudnn")


def test_new_nvidia_gpus_have_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [H200, H200])
    assert use_cudnn(ModelConfig(**FITTING), 8, 8)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_devices_have_no_cudnn(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [H200, OTHERS[kind]])
    assert not use_cudnn(ModelConfig(**FITTING), 8, 8)
    with pytest.raises(UserError, match=r"'cudnn': .* devices other than NVIDIA GPUs"):
        use_cudnn(ModelConfig(**FITTING, attention="cudnn"), 8, 8)


def test_asking_for_cudnn_on_a_cpu_is_an_error_when_the_model_is_used() -> None:
    config = small_config(**FITTING, attention="cudnn")
    params = builders.small_params(config)  # weights can be made anywhere
    batch = make_batch([random_pairs(seed=1, count=1)], 12, 12)
    with pytest.raises(UserError, match="devices other than NVIDIA GPUs"):
        small_model(config).apply({"params": params}, batch)


def gradients_of(config):
    """(params, batch) -> (loss, its gradients), both summed over tokens."""

    def loss(params, batch):
        return batch_loss(config, small_model(config), params, batch, None).loss

    return jax.value_and_grad(loss)


@pytest.mark.parametrize(
    "changes", [{"num_layers": 1}, {"norm": "pre", "scan_layers": True, "remat": "full"}]
)
def test_masks_mean_the_same_to_both(changes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of packed rows, padding, and a row of nothing else, in the float32 of the stand-in."""
    pairs = random_pairs(seed=3, count=6)
    batch = make_batch([pairs[:3], pairs[3:], []], 40, 36)
    config = small_config(**changes)
    params = builders.small_params(config)
    expected_loss, expected = jax.device_get(jax.jit(gradients_of(config))(params, batch))
    asked = []
    attend = jax.nn.dot_product_attention

    def stand_in(*arguments, implementation, **options):
        asked.append((implementation, options["mask"].dtype))
        return attend(*arguments, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    monkeypatch.setattr("transformer_jax.model.attention.use_cudnn", lambda config, q, k: q > 1)
    loss, gradients = jax.device_get(jax.jit(gradients_of(config))(params, batch))
    assert set(asked) == {("cudnn", jnp.dtype(bool))}
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for mine, other in zip(*map(jax.tree.leaves, (gradients, expected)), strict=True):
        assert np.isfinite(mine).all()
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


def program_for_a_gpu(function, *arguments) -> str:
    """What a GPU's compiler would be given."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


@pytest.fixture
def with_cudnn(on_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX, too, believes that cuDNN is there; what it checks besides is checked."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)


@pytest.mark.usefixtures("with_cudnn")
def test_the_program_for_a_gpu_calls_cudnn() -> None:
    """The encoder's attention, the decoder's and that between them, forwards and backwards."""
    mesh = builders.one_device()
    arguments = abstract_params(MODEL, mesh), abstract_batch(BatchShape(4, 40, 40), mesh)
    program = program_for_a_gpu(gradients_of(CONFIG), *arguments)
    calls = Counter(re.findall(r"__cudnn\$fmha\w+", program))
    assert calls == {"__cudnn$fmhaScaleBiasSoftmax": 3, "__cudnn$fmhaScaleBiasSoftmaxBackward": 3}


@pytest.mark.usefixtures("with_cudnn")
def test_the_calls_are_partitioned_over_several_gpus() -> None:
    """The rule is JAX's own; it is applied where the program is compiled, which is not done."""
    mesh = builders.mesh_of(data=2, tensor=2)
    with jax.set_mesh(mesh):
        arguments = abstract_params(MODEL, mesh), abstract_batch(BatchShape(4, 40, 40), mesh)
        program = program_for_a_gpu(gradients_of(CONFIG), *arguments)
    assert program.count("@CustomSPMDPartitioning(") == 6


@pytest.mark.usefixtures("with_cudnn")
def test_the_beam_search_calls_cudnn_to_encode_alone() -> None:
    special = SpecialIds(builders.PAD, BOS, EOS)
    rows, limits = jax.ShapeDtypeStruct((4, 16), jnp.int32), jax.ShapeDtypeStruct((4, 1), jnp.int32)
    arguments = (abstract_params(MODEL, builders.one_device()),), rows, rows, limits
    program = program_for_a_gpu(partial(search, (MODEL,), DecodeConfig(), special), *arguments)
    assert re.findall(r"__cudnn\$fmha\w+", program) == ["__cudnn$fmhaScaleBiasSoftmax"]


@pytest.fixture
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of any length are long."""
    monkeypatch.setattr("transformer_jax.model.attention.LONGEST_PAIRS", 0)
    monkeypatch.setattr("transformer_jax.model.attention.CHUNK", 16)


@pytest.mark.parametrize(
    ("changes", "data", "tensor"),
    [({"num_layers": 1}, 1, 1), ({"norm": "pre", "scan_layers": True, "remat": "full"}, 2, 2)],
)
def test_chunks_give_what_whole_rows_give(changes, data: int, tensor: int, request) -> None:
    """Of packed rows, padding, and a row of nothing else, whose lengths are not of whole chunks."""
    pairs = random_pairs(seed=3, count=6)
    batch = make_batch([pairs[:3], pairs[3:], [], []], 40, 36)
    config = small_config(**changes)
    params = builders.small_params(config)
    expected_loss, expected = jax.device_get(jax.jit(gradients_of(config))(params, batch))
    request.getfixturevalue("in_chunks")
    mesh = builders.mesh_of(data=data, tensor=tensor)
    params, batch = jax.device_put((params, batch), NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh):
        loss, gradients = jax.device_get(jax.jit(gradients_of(config))(params, batch))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for mine, other in zip(*map(jax.tree.leaves, (gradients, expected)), strict=True):
        assert np.isfinite(mine).all()
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


def attention_operands(length: int) -> tuple[jax.Array, KeysValues, masks.Mask]:
    """Queries, keys and values of two heads, and a causal mask of two sentences a row."""
    draw = [jax.random.normal(jax.random.key(i), (1, 2, length, 8)) for i in range(3)]
    segments = 1 + (jnp.arange(length) > length // 3)[None].astype(jnp.int32)
    return draw[0], KeysValues(draw[1].swapaxes(2, 3), draw[2]), masks.causal(segments)


@pytest.mark.usefixtures("in_chunks")
def test_a_chunk_is_equation_1() -> None:
    """The heads, against JAX's softmax of all pairs at once."""
    queries, (keys, values), mask = attention_operands(39)
    heads = attend_in_chunks(queries, KeysValues(keys, values), mask, 0.0, None)
    weights = jax.nn.softmax(jnp.where(mask.allowed()[:, None], queries @ keys, -jnp.inf))
    np.testing.assert_allclose(heads, weights @ values, atol=1e-5)


@pytest.mark.usefixtures("in_chunks")
def test_chunks_have_dropout_of_their_own_whose_gradient_is_of_the_same_weights() -> None:
    """Of equal scores and values of 1, a head is the share that was kept, scaled up."""
    _, _, mask = attention_operands(64)
    mask = masks.whole(mask.key_segments * 0 + 1, mask.key_segments * 0 + 1)
    keys, ones = jnp.zeros((1, 2, 8, 64)), jnp.ones((1, 2, 64, 8))

    def heads(values: jax.Array) -> jax.Array:
        key = jax.random.key(0)
        queries = jnp.zeros((1, 2, 64, 8))
        return attend_in_chunks(queries, KeysValues(keys, values), mask, 0.5, key)[..., 0]

    kept, pull_back = jax.vjp(heads, ones)
    assert kept.mean() == pytest.approx(1, abs=0.05)
    first, second = kept[:, :, :16], kept[:, :, 16:32]
    assert not np.allclose(first, second)
    (of_values,) = pull_back(jnp.ones_like(kept))
    assert of_values.sum() == pytest.approx(float(kept.sum()), rel=1e-5), "heads are linear in them"


def memory_of(length: int, whole: bool) -> int:
    """Bytes that value and gradient need for a while."""
    queries, keys_values, mask = attention_operands(length)

    def loss(queries: jax.Array, keys_values: KeysValues) -> jax.Array:
        if whole:
            return _attend(queries, keys_values, mask.bias(), lambda weights: weights)[0].sum()
        return attend_in_chunks(queries, keys_values, mask, 0.0, None).sum()

    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(queries, keys_values)
    return compiled.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.usefixtures("in_chunks")
def test_memory_of_chunks_grows_with_the_length_alone() -> None:
    assert 3.5 < memory_of(1_024, whole=True) / memory_of(512, whole=True) < 4.5
    assert memory_of(1_024, whole=False) / memory_of(512, whole=False) < 2.2
    assert memory_of(1_024, whole=False) < memory_of(1_024, whole=True) / 4


@pytest.mark.usefixtures("in_chunks")
def test_weights_of_long_rows_can_be_looked_at_all_the_same() -> None:
    params = builders.small_params(CONFIG)
    batch = make_batch([random_pairs(seed=1, count=1)], 12, 12)
    weights = MODEL.apply({"params": params}, batch, method="attention_weights")
    np.testing.assert_allclose(weights.cross.sum(axis=-1), 1, atol=1e-2)


def test_rows_are_long_above_a_number_of_pairs() -> None:
    short, long = jnp.ones((1, 1_024), jnp.int32), jnp.ones((1, 1_025), jnp.int32)
    assert bias_or_mask(ModelConfig(), masks.whole(short, short)).shape == (1, 1, 1_024, 1_024)
    assert isinstance(bias_or_mask(ModelConfig(), masks.whole(short, long)), masks.Mask)
