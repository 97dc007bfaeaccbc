"""The configuration: its JSON, its checks, and the files that make it."""

import dataclasses
import json
import re
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodeConfig,
    LossConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from transformer_jax.errors import UserError
from transformer_jax.experiment import from_json, to_json

WHERE = "runs/old/config.json"

# Of every type of field, and no default among them.
CHANGED = Config(
    run_directory="läufe/1",
    data=DataConfig(
        directory="/data", train=("a", "b"), max_length=80, batching="bucketed", corpus="cldr"
    ),
    tokenizer=TokenizerConfig(vocab_size=1_000),
    model=ModelConfig(
        num_layers=2, d_model=96, num_heads=6, norm="pre", dtype="bfloat16", output_bias=True
    ),
    loss=LossConfig(label_smoothing=0.0),
    optimizer=OptimizerConfig(warmup_steps=10, epsilon=1e-7, clip_norm=0.1),
    mesh=MeshConfig(data=2, fsdp=-1),
    train=TrainConfig(seed=2**32 - 1),
    checkpoint=CheckpointConfig(keep_best=0),
    decode=DecodeConfig(beam_size=1, length_penalty=1.1),
)


def sections() -> dict[str, type]:
    hints = typing.get_type_hints(Config)
    return {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}


def fails(text: str, *messages: str) -> None:
    """Reading the text is a mistake of the user's that names all of `messages`."""
    with pytest.raises(UserError) as caught:
        from_json(text, WHERE)
    assert "\n" not in str(caught.value)
    for message in messages:
        assert message in str(caught.value)


# --- JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [Config(), CHANGED], ids=["defaults", "changed"])
def test_json_round_trip(config: Config) -> None:
    text = to_json(config)
    assert from_json(text, WHERE) == config
    assert to_json(from_json(text, WHERE)) == text


def test_json_holds_every_field_by_name_one_a_line() -> None:
    text = to_json(CHANGED)
    values = json.loads(text)
    assert values["run_directory"] == "läufe/1"
    assert values["data"]["train"] == ["a", "b"]
    assert values["model"]["num_layers"] == 2
    assert values["optimizer"]["epsilon"] == 1e-7
    for name, section in sections().items():
        assert set(values[name]) == {field.name for field in dataclasses.fields(section)}
    assert '    "num_layers": 2,\n' in text
    assert "läufe" in text and text.endswith("}\n")


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1e300), st.integers(0, 2**32 - 1))
def test_numbers_survive_json_exactly(rate: float, alpha: float, seed: int) -> None:
    config = Config(
        model=ModelConfig(dropout_rate=rate),
        decode=DecodeConfig(length_penalty=alpha),
        train=TrainConfig(seed=seed),
    )
    assert from_json(to_json(config), WHERE) == config


def test_what_the_json_lacks_is_the_default() -> None:
    assert from_json("{}", WHERE) == Config()
    expected = Config(model=ModelConfig(num_layers=3))
    assert from_json('{"model": {"num_layers": 3}}', WHERE) == expected


def test_an_integer_is_accepted_for_a_float() -> None:
    config = from_json('{"optimizer": {"learning_rate_scale": 2, "clip_norm": 0}}', WHERE)
    assert config.optimizer.learning_rate_scale == 2.0
    assert type(config.optimizer.learning_rate_scale) is float
    assert type(config.optimizer.clip_norm) is float


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"modell": {}}', "modell"),
        ('{"model": {"num_layer": 6}}', "model.num_layer"),
        ('{"num_layers": 6}', "num_layers"),
        ('{"data": {"max_length": 9, "model": {}}}', "data.model"),
    ],
)
def test_an_unknown_field_is_named(text: str, path: str) -> None:
    fails(text, WHERE, f"unknown field {path};")


def test_an_unknown_field_comes_with_the_known_ones() -> None:
    fails('{"loss": {"smoothing": 0.1}}', "label_smoothing")


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("model", "num_layers", True),
        ("model", "num_layers", "6"),
        ("model", "num_layers", 6.0),
        ("model", "num_layers", None),
        ("model", "num_layers", [6]),
        ("model", "dropout_rate", "0.1"),
        ("model", "dropout_rate", False),
        ("model", "dropout_rate", None),
        ("model", "dropout_rate", {}),
        ("model", "norm", "sandwich"),
        ("model", "norm", 1),
        ("model", "norm", ["post"]),
        ("model", "dtype", "float16"),
        ("data", "train", "train"),
        ("data", "train", ["train", 1]),
        ("data", "train", {"train": 1}),
        ("data", "dev", 1),
        ("data", "dev", ["dev"]),
        ("data", "dev", None),
    ],
)
def test_a_value_of_the_wrong_type_is_named(section: str, name: str, value: object) -> None:
    fails(json.dumps({section: {name: value}}), WHERE, f"{section}.{name} is {value!r}")


@pytest.mark.parametrize("value", [1, "runs", [], None, True])
def test_a_section_must_be_an_object(value: object) -> None:
    fails(json.dumps({"model": value}), WHERE, "model", "object")
    fails(json.dumps(value), WHERE, "object")


def test_the_wrong_type_of_a_field_outside_the_sections() -> None:
    fails('{"run_directory": 3}', WHERE, "run_directory is 3")


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("{", 1), ("{\n\n  bad\n}", 3), ('{\n  "model": {},\n}\n', 3), ("{}\n\n{}", 3)],
)
def test_broken_json_is_an_error_with_its_line(text: str, line: int) -> None:
    fails(text, f"{WHERE}, line {line}:")


def test_an_invalid_value_in_json_is_named() -> None:
    fails('{"model": {"num_layers": 0}}', "model.num_layers is 0")
    fails('{"loss": {"label_smoothing": NaN}}', "loss.label_smoothing is nan")


# --- Checks on construction ---------------------------------------------------------------------

INVALID = [
    ("data.source_language", ""),
    ("data.target_language", ""),
    ("data.train", ()),
    ("data.max_length", 1),
    ("data.max_length_ratio", 0.9),
    ("data.max_length_ratio", float("nan")),
    ("data.prefetch_batches", 0),
    ("data.tokens_per_update", 255),
    ("tokenizer.vocab_size", 260),
    ("tokenizer.max_sentences", 0),
    ("tokenizer.algorithm", "word"),
    ("tokenizer.character_coverage", 0.979),
    ("tokenizer.models", ("a.model", "b.model")),
    ("tokenizer.sampling_rate", 1.0),
    ("tokenizer.sampling_rate", -0.1),
    ("model.num_layers", 0),
    ("model.d_model", 0),
    ("model.d_model", 500),
    ("model.d_ff", -1),
    ("model.num_heads", 0),
    ("model.dropout_rate", 1.0),
    ("model.dropout_rate", -0.1),
    ("model.dropout_rate", float("nan")),
    ("model.attention_dropout_rate", 1.0),
    ("model.ff_dropout_rate", -1e-9),
    ("loss.label_smoothing", 1.0),
    ("loss.label_smoothing", -0.1),
    ("optimizer.learning_rate_scale", 0.0),
    ("optimizer.warmup_steps", 0),
    ("optimizer.beta1", 1.0),
    ("optimizer.beta2", -0.1),
    ("optimizer.beta2", 1.0),
    ("optimizer.epsilon", 0.0),
    ("optimizer.clip_norm", -1.0),
    ("mesh.data", 0),
    ("mesh.fsdp", 0),
    ("mesh.tensor", -2),
    ("train.num_steps", 0),
    ("train.seed", -1),
    ("train.seed", 2**32),
    ("train.num_micro_batches", 0),
    ("train.max_skipped_updates", 0),
    ("train.log_interval", 0),
    ("train.dev_loss_interval", -1),
    ("train.dev_bleu_interval", -1),
    ("train.patience", -1),
    ("checkpoint.interval", 0),
    ("checkpoint.keep_newest", 0),
    ("checkpoint.keep_best", -1),
    ("decode.beam_size", 0),
    ("decode.length_penalty", -0.1),
    ("decode.max_extra_length", 0),
    ("decode.tokens_per_batch", 0),
]

LIMITS = [
    ("data.max_length", 2),
    ("data.max_length_ratio", 1.0),
    ("data.tokens_per_update", 256),
    ("tokenizer.vocab_size", 261),
    ("tokenizer.character_coverage", 0.98),
    ("tokenizer.models", ("a.model",)),
    ("tokenizer.sampling_rate", 0.0),
    ("model.num_layers", 1),
    ("model.dropout_rate", 0.0),
    ("loss.label_smoothing", 0.0),
    ("optimizer.beta1", 0.0),
    ("optimizer.clip_norm", 0.0),
    ("mesh.fsdp", 8),
    ("train.seed", 2**32 - 1),
    ("train.dev_loss_interval", 0),
    ("train.dev_bleu_interval", 0),
    ("train.patience", 0),
    ("checkpoint.keep_best", 0),
    ("decode.length_penalty", 0.0),
]


@pytest.mark.parametrize(("path", "value"), INVALID)
def test_an_invalid_value_names_its_section_and_field(path: str, value: object) -> None:
    section, name = path.split(".")
    with pytest.raises(UserError, match=re.escape(f"{path} is {value!r}: ")):
        sections()[section](**{name: value})


@pytest.mark.parametrize(("path", "value"), LIMITS)
def test_values_at_the_limits_are_valid(path: str, value: object) -> None:
    section, name = path.split(".")
    assert getattr(sections()[section](**{name: value}), name) == value


def test_heads_must_divide_an_even_width() -> None:
    with pytest.raises(UserError, match=r"model\.d_model is 10: .*num_heads = 4"):
        ModelConfig(d_model=10, num_heads=4)
    with pytest.raises(UserError, match=r"model\.d_model is 9: .*even"):
        ModelConfig(d_model=9, num_heads=3)


def test_heads_of_a_given_width_need_not_divide() -> None:
    model = ModelConfig(d_model=10, num_heads=3, d_k=4, d_v=5)
    assert (model.key_dim, model.value_dim) == (4, 5)
    assert (ModelConfig(d_k=16).key_dim, ModelConfig(d_k=16).value_dim) == (16, 64)
    with pytest.raises(UserError, match=r"model\.d_model is 10: .* model\.num_heads = 3"):
        ModelConfig(d_model=10, num_heads=3, d_k=4)


def test_learned_positions_must_reach_as_far_as_the_rows() -> None:
    """C05."""
    learned = ModelConfig(positions="learned", max_positions=100)
    assert Config(model=learned, data=DataConfig(max_length=100)).model.longest == 100
    with pytest.raises(UserError, match=r"model\.max_positions is 100: .* data\.max_length = 101"):
        Config(model=learned, data=DataConfig(max_length=101))
    assert Config(model=ModelConfig(max_positions=1)).model.longest > 10**9


def test_a_batch_must_hold_a_row() -> None:
    with pytest.raises(UserError, match=r"data\.tokens_per_update is 99: .*max_length = 100"):
        DataConfig(max_length=100, tokens_per_update=99)


def test_only_one_mesh_axis_takes_what_is_left() -> None:
    with pytest.raises(UserError, match=r"mesh\."):
        MeshConfig(data=-1, fsdp=-1)
    with pytest.raises(UserError, match=r"mesh\."):
        MeshConfig(data=2, fsdp=-1, tensor=-1)
    assert MeshConfig(data=2, fsdp=-1).fsdp == -1


def test_a_run_needs_a_directory() -> None:
    with pytest.raises(UserError, match="run_directory is ''"):
        Config(run_directory="")


def test_a_changed_copy_is_checked_too() -> None:
    with pytest.raises(UserError, match=r"train\.num_steps"):
        dataclasses.replace(TrainConfig(), num_steps=-5)


def test_configurations_are_frozen() -> None:
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.run_directory = "elsewhere"
    for name in sections():
        section = getattr(config, name)
        field = dataclasses.fields(section)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(section, field, getattr(section, field))
    assert hash(config) == hash(Config())


def test_the_defaults_are_the_papers_base_model() -> None:
    config = Config()
    model = config.model
    assert (model.num_layers, model.d_model, model.d_ff, model.num_heads) == (6, 512, 2048, 8)
    assert (model.dropout_rate, config.loss.label_smoothing, model.norm) == (0.1, 0.1, "post")
    assert (model.attention_dropout_rate, model.ff_dropout_rate) == (0, 0)
    optimizer = config.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    assert (optimizer.learning_rate_scale, optimizer.warmup_steps) == (1, 4_000)
    assert (config.train.num_steps, config.data.tokens_per_update) == (100_000, 25_000)
    assert config.tokenizer.vocab_size == 37_000
    assert config.checkpoint.keep_newest == 5
    decode = config.decode
    assert (decode.beam_size, decode.length_penalty, decode.max_extra_length) == (4, 0.6, 50)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.norm", "sandwich"),
        ("data.batching", "foo"),
        ("data.train", "train"),
        ("data.train", ("train", 1)),
        ("data.max_length", "a"),
        ("model.d_model", 512.0),
        ("model.num_layers", True),
        ("model.attention_bias", 1),
        ("optimizer.clip_norm", float("inf")),
        ("loss.label_smoothing", float("nan")),
        ("optimizer.beta1", 10**400),
    ],
)
def test_a_value_of_another_kind_is_refused_in_python_too(path: str, value: object) -> None:
    section, name = path.split(".")
    with pytest.raises(UserError, match=re.escape(f"{path} is {value!r}: it must be ")):
        sections()[section](**{name: value})


def test_an_invalid_value_in_json_names_the_file() -> None:
    with pytest.raises(UserError, match=re.escape(f"{WHERE}: model.num_layers is 0: ")):
        from_json('{"model": {"num_layers": 0}}', WHERE)
