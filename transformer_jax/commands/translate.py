"""translate RUN [RUN ...]: translates a file or standard input, a line for a line."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from transformer_jax.commands.shared import (
    choose,
    open_run,
    parse,
    split_checkpoint,
    split_runs,
    translate_blocks,
)
from transformer_jax.config import DecodeConfig, DistributedConfig, SamplingConfig
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.alignment import Alignment
    from transformer_jax.loading import LoadedModel
    from transformer_jax.translate import Hypothesis, Translation


@dataclass(frozen=True)
class TranslateOptions:
    """Translates text, a line for a line.

    Several runs are an ensemble, whose mean probability counts; they must share a tokenizer, and
    the first one's options hold. Each may be RUN@CHECKPOINT: newest, best, a step, or average:N.

    Text is one line a translation, its fields separated by tabs: with --nbest above 1 the number of
    the source line, from 1; the translation; with --scores the score and the log-probability;
    with --alignments words or pieces the links, such as 0-0 2-1, source first.
    """

    input: str = "-"
    """File of source sentences; - is standard input."""
    output: str = "-"
    """File to write translations to; - is standard output."""
    prefix_file: str = ""
    """File of what each translation must begin with, in whole words; an empty line asks nothing."""
    step: str = "newest"
    """Checkpoint: `newest`, `best`, or its step."""
    average_last: int = 1
    """Mean of the weights of this many newest checkpoints."""
    format: Literal["text", "jsonl"] = "text"
    """Text, or an object for each source line, with all that is known of its translations."""
    nbest: int = 1
    """Translations of each sentence: the best that the search finds, or samples."""
    scores: bool = False
    """Add to text the score (length penalty applied) and the log-probability in nats."""
    alignments: Literal["none", "words", "pieces", "matrix"] = "none"
    """Add where each word or piece comes from by cross-attention; or all weights, in jsonl only."""
    sampling: Annotated[SamplingConfig, tyro.conf.arg(name="")] = field(
        default_factory=SamplingConfig
    )
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def __post_init__(self) -> None:
        if self.nbest < 1:
            raise UserError(f"--nbest is {self.nbest}: it must be 1 or more")
        if self.sampling.temperature == 0 and self.nbest > self.decode.beam_size:
            raise UserError(
                f"--nbest is {self.nbest}: it must be at most decode.beam_size, which is "
                f"{self.decode.beam_size}"
            )
        if self.alignments == "matrix" and self.format == "text":
            raise UserError("--alignments matrix needs --format jsonl")


def run(arguments: list[str]) -> int:
    """Translates a file or standard input, line by line."""
    runs, rest = split_runs(arguments, "translate RUN [RUN ...]")
    _, config = open_run(split_checkpoint(runs[0])[0])
    options = parse("translate", TranslateOptions(decode=config.decode), rest)

    from transformer_jax import distributed
    from transformer_jax.commands.streams import check_inputs, read_blocks, started, write_blocks
    from transformer_jax.loading import load

    distributed.join(options.distributed)
    paths = [options.input, *([options.prefix_file] if options.prefix_file else [])]
    total = distributed.everywhere(lambda: check_inputs(paths, options.distributed))
    blocks = started(read_blocks(paths, options.decode.block_lines))
    model = load(choose(runs, options.step, options.average_last), options.decode)
    distributed.check_agreement({"the checkpoint": model.checkpoint})

    write_blocks(options.output, _blocks_of_lines(model, blocks, total, options))
    return 0


def _blocks_of_lines(
    model: "LoadedModel",
    blocks: Iterable[list[tuple[str, ...]]],
    total: int | None,
    options: TranslateOptions,
) -> Iterator[list[str]]:
    """What is written for each block of (source,) or (source, prefix)."""
    columns = (
        ([row[0] for row in block], [row[1] if row[1:] else "" for row in block])
        for block in blocks
    )
    lines_of = {"text": _text_lines, "jsonl": _json_lines}[options.format]
    search = {"num_best": options.nbest, "sampling": options.sampling}
    first = 1
    for translations in translate_blocks(model, columns, total, **search):
        alignments = [[None] * options.nbest] * len(translations)
        if options.alignments != "none":
            alignments = model.scorer.align(model.params, translations, _reducer(options))
        yield [
            line
            for number, row in enumerate(zip(translations, alignments, strict=True), start=first)
            for line in lines_of(options, number, *row)
        ]
        first += len(translations)


def _reducer(options: TranslateOptions) -> Callable[["Alignment"], object]:
    """What is written of an alignment."""

    def reduce(alignment: "Alignment") -> object:
        chosen = alignment.by_words() if options.alignments == "words" else alignment
        if options.format == "text":
            return chosen.pharaoh()
        sides = {"source": chosen.source, "target": chosen.target}
        if options.alignments == "matrix":
            weights = [[round(weight, 5) for weight in row] for row in chosen.weights.tolist()]
            return sides | {"weights": weights}
        return sides | {"links": chosen.links()}

    return reduce


def _text_lines(
    options: TranslateOptions, number: int, translation: "Translation", alignments: list
) -> list[str]:
    def fields(hypothesis: "Hypothesis", alignment: str | None) -> Iterator[str]:
        if options.nbest > 1:
            yield str(number)
        yield hypothesis.text
        if options.scores:
            yield f"{hypothesis.score:.6f}"
            yield f"{hypothesis.log_prob:.6f}"
        if alignment is not None:
            yield alignment

    both = zip(translation.hypotheses, alignments, strict=False)
    return ["\t".join(fields(hypothesis, alignment)) for hypothesis, alignment in both]


def _json_lines(
    options: TranslateOptions, number: int, translation: "Translation", alignments: list
) -> list[str]:
    hypotheses = []
    for hypothesis, alignment in zip(translation.hypotheses, alignments, strict=False):
        entry = {
            "text": hypothesis.text,
            "score": round(hypothesis.score, 6),
            "log_prob": round(hypothesis.log_prob, 6),
            "tokens": sum(map(len, hypothesis.tokens)),
            "finished": hypothesis.finished,
        }
        hypotheses.append(entry | ({} if alignment is None else {"alignment": alignment}))
    line = {"line": number, "parts": len(translation.sources), "hypotheses": hypotheses}
    return [json.dumps(line, ensure_ascii=False)]
