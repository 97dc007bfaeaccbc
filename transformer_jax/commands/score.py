"""score RUN [RUN ...] --sources FILE --targets FILE: how likely given translations are."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from transformer_jax.commands.shared import choose, open_run, parse, split_checkpoint, split_runs
from transformer_jax.config import DecodeConfig, DistributedConfig
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class ScoreOptions:
    """Scores pairs of lines: the log-probability of each target, given its source.

    A line a pair: the log-probability in nats, a tab, and the number of tokens of the target, end
    mark counted; nothing is divided by a length penalty. Several runs, or RUN@CHECKPOINT, are an
    ensemble as in `translate`. A blank target is scored too, as an end mark alone.
    """

    sources: str = ""
    """File of source sentences; - is standard input."""
    targets: str = ""
    """File of their translations; - is standard input."""
    output: str = "-"
    """File to write to; - is standard output."""
    per_token: bool = False
    """Write an object for each pair instead, with the pieces and the log-probability of each."""
    step: str = "newest"
    """Checkpoint: `newest`, `best`, or its step."""
    average_last: int = 1
    """Mean of the weights of this many newest checkpoints."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


def run(arguments: list[str]) -> int:
    """Scores given pairs by force decoding."""
    runs, rest = split_runs(arguments, "score RUN [RUN ...] --sources FILE --targets FILE")
    _, config = open_run(split_checkpoint(runs[0])[0])
    options = parse("score", ScoreOptions(decode=config.decode), rest)
    if not (options.sources and options.targets):
        raise UserError("give both --sources and --targets; one of them may be -, standard input")

    from transformer_jax import distributed
    from transformer_jax.commands.streams import check_inputs, read_blocks, started, write_blocks
    from transformer_jax.loading import load

    distributed.join(options.distributed)
    paths = [options.sources, options.targets]
    distributed.everywhere(lambda: check_inputs(paths, options.distributed))
    blocks = started(read_blocks(paths, options.decode.block_lines))
    model = load(choose(runs, options.step, options.average_last), options.decode)
    distributed.check_agreement({"the checkpoint": model.checkpoint})

    def lines() -> Iterator[list[str]]:
        first = 0
        for block in blocks:
            sources, targets = map(list, zip(*block, strict=True))
            scores = model.scorer.score(model.params, sources, targets, first=first)
            if options.per_token:
                numbered = enumerate(scores, start=first + 1)
                yield [json.dumps(_entry(*pair), ensure_ascii=False) for pair in numbered]
            else:
                yield [f"{score.log_prob:.6f}\t{len(score.pieces)}" for score in scores]
            first += len(block)

    write_blocks(options.output, lines())
    return 0


def _entry(number: int, score) -> dict[str, object]:
    return {
        "line": number,
        "log_prob": round(score.log_prob, 6),
        "pieces": score.pieces,
        "log_probs": [round(log_prob, 6) for log_prob in score.log_probs],
    }
