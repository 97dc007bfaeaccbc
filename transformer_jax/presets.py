"""The models of the paper: the rows of its table 3, and one for a laptop, as named variations.

The paper's column of parameters holds, in every row but `big`, for a shared vocabulary of 41,003 to
41,209 pieces; `big` would have 218 million with it, and has the 213 printed with about 36,000. The
paper does not say why; its section 5.1 speaks of "about 37,000" tokens, with which base has 63
million and `big` 214. Rows without a figure have the parameters of base; row E has more, by its
table of positions.
"""

from typing import Any, NamedTuple

from transformer_jax.config import LossConfig, ModelConfig, TrainConfig


class Preset(NamedTuple):
    """The sections of a configuration in which the rows of table 3 differ."""

    model: ModelConfig
    loss: LossConfig
    train: TrainConfig


TABLE_3: dict[str, dict[str, Any]] = {
    "base": {},
    # A: heads, at a constant amount of computation
    "A1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "A2": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "A3": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "A4": {"num_heads": 32, "d_k": 16, "d_v": 16},
    # B: width of the keys
    "B1": {"d_k": 16},
    "B2": {"d_k": 32},
    # C: size of the model
    "C1": {"num_layers": 2},
    "C2": {"num_layers": 4},
    "C3": {"num_layers": 8},
    "C4": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C5": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C6": {"d_ff": 1024},
    "C7": {"d_ff": 4096},
    # D: regularisation
    "D1": {"dropout_rate": 0.0},
    "D2": {"dropout_rate": 0.2},
    "D3": {"label_smoothing": 0.0},
    "D4": {"label_smoothing": 0.2},
    # E: learned positions
    "E": {"positions": "learned"},
    "big": {
        "d_model": 1024,
        "d_ff": 4096,
        "num_heads": 16,
        "dropout_rate": 0.3,
        "num_steps": 300_000,
    },
}
"""What each row changes of base, row by row; the paper does not number the rows of a group."""

TINY = {"num_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4}


def _preset(changes: dict[str, Any]) -> Preset:
    base: dict[str, Any] = {
        "num_layers": 6,
        "d_model": 512,
        "d_ff": 2048,
        "num_heads": 8,
        "dropout_rate": 0.1,
        "label_smoothing": 0.1,
        "num_steps": 100_000,
    }
    model = base | changes
    loss = LossConfig(label_smoothing=model.pop("label_smoothing"))
    train = TrainConfig(num_steps=model.pop("num_steps"))
    return Preset(ModelConfig(**model), loss, train)


PRESETS = {name: _preset(changes) for name, changes in (TABLE_3 | {"tiny": TINY}).items()}
