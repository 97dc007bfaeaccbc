"""inspect EXPERIMENT: what is in the text of an experiment, and whether to train on it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.commands.shared import parse, read_experiment, say
from transformer_jax.config import Config
from transformer_jax.errors import UnfitCorpus, UserError
from transformer_jax.run_directory import RunDirectory

if TYPE_CHECKING:
    from transformer_jax.data.sources import Pairs
    from transformer_jax.data.tokenizer import Tokenizers

_TOKENIZER_SENTENCES = 200_000


@dataclass(frozen=True)
class InspectOptions(Config):
    """Counts, measures and shows what is in the text of an experiment.

    The exit status is 1 where training on it would be meaningless.
    """

    json: bool = False
    """Print JSON instead of the table."""
    html: str = ""
    """File to write a page with plots to, which needs no other file."""


def run(arguments: list[str]) -> int:
    """Inspects the text of an experiment; see `InspectOptions`."""
    default, rest = read_experiment(InspectOptions, "inspect", arguments)
    options = parse("inspect", default, rest)

    from transformer_jax.data.inspection_report import describe, find_reasons
    from transformer_jax.prepare import inspect_text, open_all

    sources = open_all(options)
    found = inspect_text(options, sources, _find_tokenizers(options, sources))
    reasons = find_reasons(found)
    if options.html:
        from transformer_jax.inspection_page import write_page

        write_page(Path(options.html).expanduser(), found)
    if options.json:
        print(json.dumps(found.to_json() | {"reasons": reasons}, ensure_ascii=False))
    else:
        print("\n".join(describe(found)))
    if reasons:
        raise UnfitCorpus("; ".join(reasons))
    return 0


def _find_tokenizers(
    config: Config, sources: "Mapping[str, Sequence[Pairs]]"
) -> "Tokenizers | None":
    """The run's, else some trained on a sample of the text; None where that cannot be."""
    from transformer_jax.data.tokenizer import Tokenizers
    from transformer_jax.prepare import make_tokenizers

    files = RunDirectory(config.run_directory).tokenizers(config.tokenizer.shared)
    if all(file.is_file() for file in files):
        return Tokenizers.load(files)
    size = min(config.tokenizer.max_sentences, _TOKENIZER_SENTENCES)
    say(f"no tokenizer in {files[0].parent} yet: training one on at most {size} sentences")
    settings = replace(config.tokenizer, max_sentences=size)
    try:
        return make_tokenizers(replace(config, tokenizer=settings), sources, lambda text: None)
    except UserError as error:
        say(f"nothing is counted in tokens: {error}")
        return None
