"""inspect EXPERIMENT: what is in the text of an experiment, and whether to train on it."""

import json
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.commands.shared import parse, say, split_first
from transformer_jax.config import Config
from transformer_jax.errors import UnfitCorpus, UserError
from transformer_jax.experiment import load_experiment
from transformer_jax.run_directory import RunDirectory

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer

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
    path, rest = split_first(arguments, "inspect EXPERIMENT")
    config = load_experiment(path) if path else Config()
    default = InspectOptions(**{one.name: getattr(config, one.name) for one in fields(config)})
    options = parse("inspect", default, rest)

    from transformer_jax.data.inspection_report import describe, find_reasons
    from transformer_jax.prepare import inspect_text

    found = inspect_text(options.data, _find_tokenizer(options))
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


def _find_tokenizer(config: Config) -> "Tokenizer | None":
    """The run's, else one trained on a sample of the text; None where that cannot be."""
    from transformer_jax.data.corpus import read_split
    from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer

    file = RunDirectory(config.run_directory).tokenizer
    if file.is_file():
        return Tokenizer.load(file)
    size = min(config.tokenizer.max_sentences, _TOKENIZER_SENTENCES)
    say(f"no tokenizer in {file.parent} yet: training one on at most {size} sentences")
    sentences = chain.from_iterable(read_split(config.data, "train"))
    try:
        settings = replace(config.tokenizer, max_sentences=size)
        return Tokenizer(train_tokenizer(sentences, settings))
    except UserError as error:
        say(f"nothing is counted in tokens: {error}")
        return None
