"""translate RUN: translates a file or standard input, a line for a line."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from transformer_jax.commands.shared import open_run, parse, split_first, translate_lines
from transformer_jax.config import DecodeConfig, DistributedConfig
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class TranslateOptions:
    """Translates text, a line for a line, with a run's newest checkpoint."""

    input: str = "-"
    """File of source sentences; - is standard input."""
    output: str = "-"
    """File to write translations to; - is standard output."""
    step: str = "newest"
    """Checkpoint: `newest`, `best`, or its step."""
    average_last: int = 1
    """Mean of the weights of this many newest checkpoints."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


def run(arguments: list[str]) -> int:
    """Translates a file or standard input, line by line."""
    path, rest = split_first(arguments, "translate RUN")
    run, config = open_run(path)
    options = parse("translate", TranslateOptions(decode=config.decode), rest)

    from transformer_jax import distributed
    from transformer_jax.data.text import fingerprint, read_lines, read_stream, write_lines
    from transformer_jax.load import load

    distributed.join(options.distributed)
    if options.distributed.enabled and options.input == "-":
        raise UserError("of several processes each must read the text: give --input, a file")

    def read() -> list[str]:
        if options.input == "-":
            return list(read_stream(sys.stdin.buffer, "standard input"))
        return list(read_lines(Path(options.input).expanduser()))

    lines = distributed.everywhere(read)
    distributed.check_agreement({"the text to translate": fingerprint(lines)})
    model = load(run, options.decode, options.step, options.average_last)
    distributed.check_agreement({"the checkpoint": model.checkpoint})

    def translations() -> Iterator[str]:  # begun when the output is open
        for translation in translate_lines(model, lines):
            yield translation.text

    if not distributed.is_first():
        list(translations())
    elif options.output == "-":
        sys.stdout.buffer.write("".join(f"{text}\n" for text in translations()).encode())
    else:
        write_lines(Path(options.output).expanduser(), translations())
    return 0
