"""An update of training, ours and PyTorch's, in turns on the same machine.

Command    python experiments/benchmarks/train_step.py [--size small|base] [--rounds 5]
           with parallel text, for the lengths of real sentences: --text FILE.en FILE.de
           --peer none where PyTorch is not installed (pip install torch)
Prints     seconds an update and tokens a second of each, round by round, and the ratio of their
           medians

Without text every row is full: 2,048 source and 2,048 target tokens in sentences of 64, float32,
dropout 0.1, label smoothing 0.1, Adam. With text it is tokens a second that counts, padding
excluded: ours in packed rows of `--row` tokens, which no sentence exceeds; PyTorch's in batches of
sentences of like length, as is usual, and in batches whose rows are padded to 256.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from turns import Contender, Work, in_turns, tell

from transformer_jax.array_types import Batch
from transformer_jax.config import (
    Config,
    DataConfig,
    LossConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
)
from transformer_jax.data.batch_plan import plan_epoch
from transformer_jax.data.loader import PlannedBatches, Shard
from transformer_jax.data.text import read_pairs
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.host_memory import keep_freed_memory
from transformer_jax.model.transformer import Transformer
from transformer_jax.sharding import make_mesh
from transformer_jax.train_step import init_state, jit_train_step

VOCAB_SIZE, PAD, BOS = 8_000, 0, 1
TOKENS, SENTENCE, LONGEST = 2_048, 64, 256
MODELS = {
    "small": ModelConfig(num_layers=3, d_model=256, d_ff=1_024, num_heads=4),
    "base": ModelConfig(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=MODELS, default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=3, help="in a round of one contender")
    parser.add_argument("--peer", choices=["torch", "none"], default="torch")
    parser.add_argument("--text", type=Path, nargs=2, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--row", type=int, default=64, help="tokens of a row of ours, with text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = Config(
        data=DataConfig(
            max_length=options.row if options.text else SENTENCE, tokens_per_update=TOKENS
        ),
        model=MODELS[options.size],
        loss=LossConfig(label_smoothing=0.1),
        optimizer=OptimizerConfig(),
    )
    found = contenders(config, options)
    tell(in_turns(found, options.rounds, options.updates, "tokens"), options.json)


def contenders(config: Config, options: argparse.Namespace) -> dict[str, Contender]:
    """The updates of each."""
    if not options.text:
        sentences = np.random.default_rng(0).integers(4, VOCAB_SIZE, (2, TOKENS // SENTENCE, 64))
        found = {
            "transformer_jax": partial(ours, config, [full_batch(sentences)]),
            "torch": partial(torchs, config, [tuple(sentences)]),
        }
    else:
        pairs = read_tokens(*options.text, options.row)
        padded = padded_batches(pairs, LONGEST)
        found = {
            "transformer_jax, packed": partial(ours, config, packed_batches(pairs, config.data)),
            "torch, like lengths": partial(torchs, config, batches_of_like_length(pairs)),
            "torch, all padded": partial(torchs, config, padded),
        }
    wanted = ("transformer_jax", options.peer)
    return {name: contender for name, contender in found.items() if name.startswith(wanted)}


# --- Batches --------------------------------------------------------------------------------------


def full_batch(sentences: np.ndarray) -> Batch:
    """[side, sentence, token] → a batch, each sentence a row."""
    rows, length = sentences.shape[1:]
    return {
        f"{side}{part}": array
        for side, tokens in zip(("inputs", "targets"), sentences.astype(np.int32), strict=True)
        for part, array in (
            ("", tokens),
            ("_positions", np.tile(np.arange(length, dtype=np.int32), (rows, 1))),
            ("_segments", np.ones((rows, length), np.int32)),
        )
    }


def read_tokens(source: Path, target: Path, longest: int) -> list[tuple[list[int], list[int]]]:
    """The pairs of a text as pieces of a vocabulary trained on it, those that fit."""
    pairs = list(itertools.islice(read_pairs(source, target), 50_000))
    config = TokenizerConfig(vocab_size=VOCAB_SIZE)
    tokenizer = Tokenizer(train_tokenizer(itertools.chain.from_iterable(pairs), config))
    sides = (tokenizer.encode([pair[side] for pair in pairs]) for side in (0, 1))
    encoded = zip(*sides, strict=True)
    return [pair for pair in encoded if all(1 < len(side) <= longest for side in pair)]


class Tokens:
    """What a batch reads of a token store."""

    def __init__(self, pairs: list[tuple[list[int], list[int]]]) -> None:
        (self.source_tokens, self.source_offsets), (self.target_tokens, self.target_offsets) = (
            self._joined(side) for side in zip(*pairs, strict=True)
        )

    @staticmethod
    def _joined(sentences: Sequence[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.append(0, np.cumsum([len(one) for one in sentences]))
        return np.array(list(itertools.chain.from_iterable(sentences))), offsets


def lengths_of(pairs: list[tuple[list[int], list[int]]]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array([len(pair[side]) for pair in pairs]) for side in (0, 1))


def packed_batches(pairs: list, config: DataConfig) -> "PlannedBatches":
    plan = plan_epoch(*lengths_of(pairs), config, 0, 0, 1)
    return PlannedBatches(Tokens(pairs), plan, Shard(0, 1))


def batches_of_like_length(pairs: list) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sorted by length, cut where a side is full with its padding, in random order."""
    pairs = sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0])))
    batches, current = [], []
    for pair in pairs:
        longest = max(len(side) for one in [*current, pair] for side in one)
        if current and longest * (len(current) + 1) > TOKENS:
            batches.append(current)
            current = []
        current.append(pair)
    return shuffled([padded(batch) for batch in batches])


def padded_batches(pairs: list, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = TOKENS // length
    groups = [pairs[start : start + rows] for start in range(0, len(pairs) - rows, rows)]
    return shuffled([padded(group, length) for group in groups])


def padded(pairs: list, length: int = 0) -> tuple[np.ndarray, np.ndarray]:
    sides = []
    for side in zip(*pairs, strict=True):
        array = np.zeros((len(side), length or max(map(len, side))), np.int64)
        for row, tokens in zip(array, side, strict=True):
            row[: len(tokens)] = tokens
        sides.append(array)
    return tuple(sides)


def shuffled(batches: list) -> list:
    return [batches[index] for index in np.random.default_rng(0).permutation(len(batches))]


# --- Contenders -----------------------------------------------------------------------------------


def ours(config: Config, batches: "PlannedBatches | list[Batch]") -> Iterator[Work]:
    """A step is compiled for each shape of batch, before it is timed."""
    keep_freed_memory()
    model, mesh = Transformer(config.model, VOCAB_SIZE, BOS), make_mesh(MeshConfig(data=1))
    state, shardings = init_state(config, model, mesh)
    step = jit_train_step(config, model, shardings, mesh)
    compiled: dict[Any, Any] = {}

    def run(batch: Batch) -> None:
        nonlocal state
        state, metrics = compiled[shape_of(batch)](state, batch)
        jax.block_until_ready(metrics)

    def shape_of(batch: Batch) -> tuple:
        return tuple(array.shape for array in batch.values())

    with jax.set_mesh(mesh):
        for index in itertools.count():
            batch = jax.device_put(batches[index % len(batches)])
            if shape_of(batch) not in compiled:
                compiled[shape_of(batch)] = step.lower(state, batch).compile()
            tokens = sum(
                int((batch[f"{side}_segments"] != 0).sum()) for side in ("inputs", "targets")
            )
            yield Work(lambda batch=batch: run(batch), tokens)


def torchs(config: Config, batches: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[Work]:
    """`torch.nn.Transformer` with tied embeddings, PyTorch's own Adam and loss."""
    import torch
    from torch import nn

    model = config.model
    embedding = nn.Embedding(VOCAB_SIZE, model.d_model, padding_idx=PAD)
    nn.init.normal_(embedding.weight, std=model.d_model**-0.5)
    network = nn.Transformer(
        model.d_model,
        model.num_heads,
        model.num_layers,
        model.num_layers,
        model.d_ff,
        model.dropout_rate,
        batch_first=True,
    )
    dropout = nn.Dropout(model.dropout_rate)
    parameters = [*embedding.parameters(), *network.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-4, (0.9, 0.98), 1e-9)
    loss_of = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    angles = torch.arange(512)[:, None] / 10_000 ** (
        torch.arange(0, model.d_model, 2) / model.d_model
    )
    positions = torch.stack([angles.sin(), angles.cos()], -1).reshape(512, model.d_model)

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        scaled = embedding(tokens) * model.d_model**0.5
        return dropout(scaled + positions[: tokens.shape[1]])

    def run(source: torch.Tensor, target: torch.Tensor) -> None:
        shifted = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], dim=1)
        no_padding = bool((source != PAD).all() and (target != PAD).all())
        decoded = network(
            embed(source),
            embed(shifted),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            tgt_is_causal=True,
            src_key_padding_mask=None if no_padding else source == PAD,
            memory_key_padding_mask=None if no_padding else source == PAD,
        )
        logits = decoded @ embedding.weight.T
        optimizer.zero_grad()
        loss_of(logits.flatten(0, 1), target.flatten()).backward()
        optimizer.step()

    for index in itertools.count():
        source, target = (torch.from_numpy(side).long() for side in batches[index % len(batches)])
        tokens = int((source != PAD).sum() + (target != PAD).sum())
        yield Work(lambda s=source, t=target: run(s, t), tokens)


if __name__ == "__main__":
    main()
