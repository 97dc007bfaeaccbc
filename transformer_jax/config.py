"""The configuration of an experiment: frozen dataclasses, one section per consuming module.

The defaults are the paper's base model (table 3) on the WMT14 en-de batch size. Every value is
checked on construction, so a `Config` that exists is a valid one.
"""

import sys
from dataclasses import dataclass, field
from typing import Literal

from transformer_jax.config_checks import check, check_least, check_types
from transformer_jax.config_data import DataConfig, TokenizerConfig


@dataclass(frozen=True)
class ModelConfig:
    """The Transformer (section 3)."""

    num_layers: int = 6
    """Layers in the encoder, and as many in the decoder (N)."""
    d_model: int = 512
    """Width of the residual stream (d_model)."""
    d_ff: int = 2048
    """Inner width of the feed-forward networks (d_ff)."""
    num_heads: int = 8
    """Attention heads (h)."""
    d_k: int = 0
    """Width of the queries and keys of a head; 0 is d_model / num_heads."""
    d_v: int = 0
    """Width of the values of a head; 0 is d_model / num_heads."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Sine and cosine of the position, which have no end; or a table (table 3, row E)."""
    max_positions: int = 1_024
    """Rows of the table of learned positions: the longest sentence, in tokens with its end mark."""
    activation: Literal["relu", "swish"] = "relu"
    """Non-linearity of the feed-forward networks; the paper's is relu."""
    attention: Literal["auto", "xla", "cudnn"] = "auto"
    """What computes attention in the full pass, training and encoding: XLA's compiler, or cuDNN's
    kernel for NVIDIA GPUs; `auto` is cuDNN where it can be. Decoding always takes XLA."""
    attention_bias: bool = False
    """Biases of the attention's linear maps, which other implementations have."""
    output_bias: bool = False
    """A bias of the logits, which other implementations have."""
    layer_norm_epsilon: float = 1e-6
    """Added to the variance in layer normalisation; PyTorch's is 1e-5."""
    vocab_multiple: int = 128
    """The embedding has a multiple of this many rows, so that mesh.tensor divides it."""
    remat: Literal["none", "full", "dots"] = "none"
    """What a layer computes again in the backward pass to save memory: all, or all but dots."""
    scan_layers: bool = False
    """Layers as one scan over stacked parameters: the same function, compiled faster."""
    dropout_rate: float = 0.1
    """Dropout of each sub-layer's output and of the embeddings (P_drop, section 5.4)."""
    attention_dropout_rate: float = 0.0
    """Dropout of the attention weights; not in the paper."""
    ff_dropout_rate: float = 0.0
    """Dropout of the feed-forward networks' inner activations; not in the paper."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after the residual sum (the paper), or before each sub-layer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation; parameters, softmax, statistics and loss stay float32."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(self, 1, "num_layers", "d_model", "d_ff", "num_heads")
        check_least(self, 1, "max_positions", "vocab_multiple")
        for name in ("d_k", "d_v"):
            check(self, getattr(self, name) >= 0, name, "1 or more, or 0 for d_model / num_heads")
        divisible = self.d_model % self.num_heads == 0 or (self.d_k > 0 and self.d_v > 0)
        check(self, divisible, "d_model", f"a multiple of model.num_heads = {self.num_heads}")
        check(self, self.layer_norm_epsilon > 0, "layer_norm_epsilon", "above 0")
        check(self, self.d_model % 2 == 0, "d_model", "even: sine and cosine come in pairs")
        for name in ("dropout_rate", "attention_dropout_rate", "ff_dropout_rate"):
            check(self, 0 <= getattr(self, name) < 1, name, "at least 0 and below 1")
        fits = self.attention != "cudnn" or not self.cudnn_obstacle
        check(self, fits, "attention", f"'auto' or 'xla' where {self.cudnn_obstacle}")

    @property
    def cudnn_obstacle(self) -> str:
        """Why cuDNN cannot compute this attention: it takes bfloat16, no dropout, and one width of
        all heads, a multiple of 8 up to 128. Empty where it can."""
        obstacles = {
            f"model.dtype is {self.dtype!r}": self.dtype != "bfloat16",
            "there is attention dropout": self.attention_dropout_rate > 0,
            f"d_k is {self.key_dim} and d_v {self.value_dim}": self.key_dim != self.value_dim,
            f"d_k is {self.key_dim}": self.key_dim % 8 > 0 or self.key_dim > 128,
        }
        return next((text for text, found in obstacles.items() if found), "")

    @property
    def key_dim(self) -> int:
        """d_k."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_dim(self) -> int:
        """d_v."""
        return self.d_v or self.d_model // self.num_heads

    @property
    def longest(self) -> int:
        """The most tokens of a sentence that have positions."""
        return self.max_positions if self.positions == "learned" else sys.maxsize


@dataclass(frozen=True)
class LossConfig:
    """The training objective (section 5.4)."""

    label_smoothing: float = 0.1
    """Share of the target probability that is spread evenly over the vocabulary."""
    num_chunks: int = 1
    """Parts of a row that logits are computed in, one after the other, to save memory."""

    def __post_init__(self) -> None:
        check_types(self)
        check(self, 0 <= self.label_smoothing < 1, "label_smoothing", "at least 0 and below 1")
        check_least(self, 1, "num_chunks")


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam and its schedule (section 5.3)."""

    learning_rate_scale: float = 1.0
    """Factor on the paper's learning rate d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5)."""
    warmup_steps: int = 4_000
    """Updates over which the learning rate rises."""
    beta1: float = 0.9
    """Decay of the mean of the gradients."""
    beta2: float = 0.98
    """Decay of the mean of their squares."""
    epsilon: float = 1e-9
    """Added to the denominator of Adam."""
    clip_norm: float = 0.0
    """Largest global norm of the gradients, which are scaled down to it; 0 is off."""
    ema_decay: float = 0.0
    """Decay of a moving average of the weights, used in their place but to train on; 0 is none."""

    def __post_init__(self) -> None:
        check_types(self)
        check(self, self.learning_rate_scale > 0, "learning_rate_scale", "above 0")
        check_least(self, 1, "warmup_steps")
        check(self, 0 <= self.beta1 < 1, "beta1", "at least 0 and below 1")
        check(self, 0 <= self.beta2 < 1, "beta2", "at least 0 and below 1")
        check(self, self.epsilon > 0, "epsilon", "above 0")
        check(self, self.clip_norm >= 0, "clip_norm", "0 (off) or more")
        check(self, 0 <= self.ema_decay < 1, "ema_decay", "at least 0 (none) and below 1")


@dataclass(frozen=True)
class MeshConfig:
    """How the devices are laid out; their product is the number of devices."""

    data: int = -1
    """Devices over which the batch is split; -1 is all that are left."""
    fsdp: int = 1
    """Devices over which the batch and the parameters are split."""
    tensor: int = 1
    """Devices over which heads, feed-forward and vocabulary are split."""

    def __post_init__(self) -> None:
        check_types(self)
        sizes = (self.data, self.fsdp, self.tensor)
        for name, size in zip(("data", "fsdp", "tensor"), sizes, strict=True):
            check(self, size >= 1 or size == -1, name, "-1, or 1 or more")
        left = ("tensor", "fsdp")[self.tensor != -1]
        check(self, sizes.count(-1) <= 1, left, "a number, as another axis takes what is left")


@dataclass(frozen=True)
class DistributedConfig:
    """How the processes of a job on several hosts find one another."""

    enabled: bool = False
    """Join them; Slurm, Open MPI, Kubernetes and Cloud TPU are recognised without more."""
    coordinator: str = ""
    """HOST:PORT of the first process, where no cluster is recognised."""
    num_processes: int = 1
    """Processes of the job, where no cluster is recognised."""
    process_id: int = 0
    """Number of this process, from 0, where no cluster is recognised."""
    timeout: int = 100
    """Seconds without a sign of another process after which the job ends."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(self, 1, "num_processes", "timeout")
        valid = not self.coordinator or (self.enabled and self.num_processes > 1)
        check(self, valid, "coordinator", "empty unless several processes are distributed.enabled")
        exists = 0 <= self.process_id < self.num_processes
        check(self, exists, "process_id", f"from 0 to {self.num_processes - 1}")


@dataclass(frozen=True)
class ProfileConfig:
    """A trace of some updates, for TensorBoard or Perfetto."""

    start: int = 0
    """The first update traced; it should come after those that compile."""
    steps: int = 0
    """Updates traced; 0 is none."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(self, 0, "start", "steps")


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    num_steps: int = 100_000
    """Updates to train for."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and the dropout."""
    num_micro_batches: int = 1
    """Parts that the batch of an update is computed in, to save memory."""
    max_skipped_updates: int = 10
    """Updates in a row with a loss or gradient that is not finite before training stops."""
    log_interval: int = 100
    """Updates between two lines of metrics."""
    dev_loss_interval: int = 1_000
    """Updates between two computations of loss and perplexity on the validation set; 0 is never."""
    dev_bleu_interval: int = 5_000
    """Updates between two BLEU scores of translations of the validation set; 0 is never."""
    patience: int = 0
    """Validations in a row without a new best score before training stops; 0 is never."""

    def __post_init__(self) -> None:
        check_types(self)
        names = ("num_steps", "num_micro_batches", "max_skipped_updates", "log_interval")
        check_least(self, 1, *names)
        for name in ("dev_loss_interval", "dev_bleu_interval", "patience"):
            check(self, getattr(self, name) >= 0, name, "0 (off) or more")
        check(self, 0 <= self.seed < 2**32, "seed", "from 0 to 4294967295")


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept of a run."""

    interval: int = 1_000
    """Updates between two checkpoints."""
    keep_newest: int = 5
    """Newest checkpoints kept; as many can be averaged."""
    keep_best: int = 1
    """Checkpoints with the best score on the validation set that are kept besides."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(self, 1, "interval", "keep_newest")
        check_least(self, 0, "keep_best")


@dataclass(frozen=True)
class DecodeConfig:
    """Beam search (section 6.1)."""

    beam_size: int = 4
    """Hypotheses kept alive per sentence."""
    length_penalty: float = 0.6
    """Exponent alpha of ((5 + length) / 6)^alpha, by which log-probabilities are divided."""
    max_extra_length: int = 50
    """Longest translation: the tokens of the source, plus this many."""
    min_length: int = 0
    """Fewest tokens of a translation, its end mark not counted."""
    max_source_length: int = 1_024
    """Longest source translated at once, in tokens with its end mark; longer ones go in parts."""
    tokens_per_batch: int = 4_096
    """Source tokens, padding included, translated at once."""
    block_lines: int = 10_000
    """Lines that are read, sorted by length, translated and written before the next are read."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(self, 1, "beam_size", "max_extra_length", "tokens_per_batch", "block_lines")
        check_least(self, 0, "length_penalty", "min_length")
        check_least(self, 2, "max_source_length")


@dataclass(frozen=True)
class SamplingConfig:
    """Translations drawn at random instead of searched for."""

    temperature: float = 0.0
    """Divisor of the logits before a token is drawn; 0 is beam search."""
    top_k: int = 0
    """Draw from this many likeliest tokens; 0 is all."""
    top_p: float = 1.0
    """Draw from the fewest tokens that have this share of the probability."""
    seed: int = 0
    """Seed of the draws; a sentence's are those of its line, whatever is translated beside it."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(self, 0, "top_k")
        valid = self.temperature == 0 or self.temperature >= 1e-3
        check(self, valid, "temperature", "0 (beam search) or from 0.001 on")
        check(self, 0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        check(self, 0 <= self.seed < 2**31, "seed", "from 0 to 2147483647")
        unused = self.temperature == 0 and (self.top_k or self.top_p < 1 or self.seed)
        check(self, not unused, "temperature", "above 0 where top_k, top_p or seed is given")


@dataclass(frozen=True)
class Config:
    """An experiment."""

    run_directory: str = "runs/default"
    """Folder that the run writes to and resumes from."""
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    def __post_init__(self) -> None:
        check_types(self)
        check(self, self.run_directory != "", "run_directory", "a path")
        fits = self.data.max_length <= self.model.longest
        longest = f"at least data.max_length = {self.data.max_length} with learned positions"
        check(self.model, fits, "max_positions", longest)
