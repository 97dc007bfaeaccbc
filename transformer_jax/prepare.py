"""What happens before step 1: the tokenizer and the token stores of a run."""

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from transformer_jax.config import Config, DataConfig
from transformer_jax.data.corpus import TokenStore, build_store, read_split
from transformer_jax.data.findings import Inspection
from transformer_jax.data.inspection import inspect_corpus
from transformer_jax.data.inspection_report import find_reasons, summarize
from transformer_jax.data.text import fingerprint
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.errors import UnfitCorpus, UserError
from transformer_jax.run_directory import RunDirectory


class Prepared(NamedTuple):
    """The text of a run as tokens."""

    tokenizer: Tokenizer
    train: TokenStore
    dev: TokenStore
    dev_pairs: list[tuple[str, str]]
    """All pairs of the validation set as text; BLEU is scored on every one."""

    def fingerprints(self) -> dict[str, str]:
        """What must be the same in all processes of a job."""
        dev = chain.from_iterable(self.dev_pairs)
        return {
            "the fingerprint of the tokenizer": self.tokenizer.fingerprint,
            "the fingerprint of the training corpus": self.train.fingerprint,
            "the fingerprint of the validation set": fingerprint(dev),
        }


def load_prepared(config: Config, run: RunDirectory) -> Prepared:
    """What `prepare` has made, perhaps in another process."""
    tokenizer = Tokenizer.load(run.tokenizer)
    train, dev = (TokenStore(run.tokens / split) for split in ("train", "dev"))
    return Prepared(tokenizer, train, dev, list(read_split(config.data, "dev")))


def inspect_text(config: DataConfig, tokenizer: Tokenizer | None) -> Inspection:
    """Inspects the training text, which is read once more for it."""
    sources = {" + ".join(config.train): read_split(config, "train")}
    held_out = {"dev": list(read_split(config, "dev"))}
    if config.test:
        held_out["test"] = list(read_split(config, "test"))
    return inspect_corpus(sources, held_out, tokenizer, config)


def _check_text(config: DataConfig, tokenizer: Tokenizer, say: Callable[[str], None]) -> None:
    """Inspects the training text, tells what was found, and stops where `config` says so."""
    found = inspect_text(config, tokenizer)
    for line in summarize(found):
        say(line)
    reasons = find_reasons(found)
    if reasons and config.inspection == "stop":
        raise UnfitCorpus("; ".join(reasons) + "; --data.inspection warn goes on all the same")
    for reason in reasons:
        say(f"WARNING: {reason}")


def prepare(config: Config, run: RunDirectory, say: Callable[[str], None]) -> None:
    """Reads all text, makes what is missing in the run's directory, and reports with `say`.

    A run keeps the tokenizer that it was begun with. Raises UserError for text that cannot be
    trained on, and then leaves no new run behind.
    """
    # Every file is opened and its lines are counted before the first one is read.
    train_pairs, dev_pairs = read_split(config.data, "train"), read_split(config.data, "dev")
    if config.data.test and not list(read_split(config.data, "test")):
        raise UserError(f"data.test is {config.data.test!r}: no sentences to score")
    dev_list = list(dev_pairs)
    with run.creating():
        is_new = not run.tokenizer.is_file()
        if is_new:
            say(f"training a tokenizer of {config.tokenizer.vocab_size} pieces")
            sentences = chain.from_iterable(train_pairs)
            tokenizer = Tokenizer(train_tokenizer(sentences, config.tokenizer))
            train_pairs = read_split(config.data, "train")
        else:
            tokenizer = Tokenizer.load(run.tokenizer)
        # A run that goes on has the very corpus that was inspected when it was begun.
        if is_new and config.data.inspection != "off":
            _check_text(config.data, tokenizer, say)
        stores = {}
        for split, pairs in (("train", train_pairs), ("dev", dev_list)):
            directory = run.tokens / split
            same_as = TokenStore(directory).fingerprint if directory.exists() else None
            stores[split] = build_store(directory, pairs, tokenizer, config.data, same_as)
            for line in stores[split].report.lines():
                say(f"{split}: {line}")
        if is_new:
            run.save_config(config)
            tokenizer.save(run.tokenizer)
