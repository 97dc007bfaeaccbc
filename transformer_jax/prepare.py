"""What happens before step 1: the tokenizer and the token stores of a run."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import Config, TokenizerConfig
from transformer_jax.data.corpus import Pair, TokenStore, build_store, read_split
from transformer_jax.data.text import fingerprint
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.run_directory import RunDirectory


class Prepared(NamedTuple):
    """The text of a run as tokens."""

    tokenizers: Tokenizers
    train: TokenStore
    dev: TokenStore
    dev_pairs: list[Pair]
    """All pairs of the validation set as text; BLEU is scored on every one."""

    def fingerprints(self) -> dict[str, str]:
        """What must be the same in all processes of a job."""
        dev = chain.from_iterable(self.dev_pairs)
        return {
            "the fingerprint of the tokenizer": self.tokenizers.fingerprint,
            "the fingerprint of the training corpus": self.train.fingerprint,
            "the fingerprint of the validation set": fingerprint(dev),
        }


def load_prepared(config: Config, run: RunDirectory) -> Prepared:
    """What `prepare` has made, perhaps in another process."""
    tokenizers = Tokenizers.load(run.tokenizers(config.tokenizer.shared))
    train, dev = (TokenStore(run.tokens / split) for split in ("train", "dev"))
    return Prepared(tokenizers, train, dev, list(read_split(config.data, "dev")))


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
        files = run.tokenizers(config.tokenizer.shared)
        is_new = not all(file.is_file() for file in files)
        tokenizers = _make_tokenizers(config, dev_list, say) if is_new else Tokenizers.load(files)
        stores = {}
        for split, pairs in (("train", train_pairs), ("dev", dev_list)):
            directory = run.tokens / split
            same_as = TokenStore(directory).fingerprint if directory.exists() else None
            stores[split] = build_store(directory, pairs, tokenizers, config.data, same_as)
            for line in stores[split].report.lines():
                say(f"{split}: {line}")
        if is_new:
            run.save_config(config)
            tokenizers.save(files)


def _make_tokenizers(
    config: Config, dev_pairs: list[Pair], say: Callable[[str], None]
) -> Tokenizers:
    """Those of a new run, trained on its text or taken from `tokenizer.models`."""
    settings = config.tokenizer
    if settings.models:
        return _take_tokenizers(settings, dev_pairs, say)
    size = settings.vocab_size
    if settings.shared:
        say(f"training a tokenizer of {size} pieces")
        sentences = chain.from_iterable(read_split(config.data, "train"))
        tokenizer = Tokenizer(train_tokenizer(sentences, settings))
        return Tokenizers(tokenizer, tokenizer)
    trained = []
    for side, language in enumerate((config.data.source_language, config.data.target_language)):
        say(f"training a tokenizer of {size} pieces for {language}")
        sentences = (pair[side] for pair in read_split(config.data, "train"))
        text = f"the {language} side of this corpus"
        trained.append(Tokenizer(train_tokenizer(sentences, settings, text)))
    return Tokenizers(*trained)


def _take_tokenizers(
    config: TokenizerConfig, dev_pairs: list[Pair], say: Callable[[str], None]
) -> Tokenizers:
    """Those of `tokenizer.models`; tells how many lines do not come back from them as they were."""
    tokenizers = Tokenizers.load([Path(model).expanduser() for model in config.models])
    for side, tokenizer in enumerate((tokenizers.source, tokenizers.target)):
        tokenizer.check(config)
        lines = [pair[side] for pair in dev_pairs]
        decoded = tokenizer.decode(tokenizer.encode(lines))
        changed = sum(one != other for one, other in zip(lines, decoded, strict=True))
        say(f"taking {tokenizer.name}, which changes {changed} of {len(lines)} lines of dev")
    return tokenizers
