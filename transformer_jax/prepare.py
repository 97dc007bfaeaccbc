"""What happens before step 1: the tokenizer and the token stores of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import Config, TokenizerConfig
from transformer_jax.console import is_watched, progress_bar
from transformer_jax.data.corpus import load_or_build
from transformer_jax.data.findings import Inspection
from transformer_jax.data.inspection import inspect_corpus
from transformer_jax.data.inspection_report import find_reasons, show_pairs, summarize
from transformer_jax.data.resampling import Resampling
from transformer_jax.data.sources import Given, Pair, Pairs, open_sources, read_split
from transformer_jax.data.text import fingerprint
from transformer_jax.data.token_store import TokenStore
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from transformer_jax.errors import UnfitCorpus, UserError
from transformer_jax.run_directory import RunDirectory


class Prepared(NamedTuple):
    """The text of a run as tokens."""

    tokenizers: Tokenizers
    train: TokenStore
    dev: TokenStore
    dev_pairs: list[Pair]
    """All pairs of the validation set as text; BLEU is scored on every one."""
    store_of: Callable[[int], TokenStore] | None
    """The training pairs of an epoch, where they come in other pieces in each."""

    def fingerprints(self) -> dict[str, str]:
        """What must be the same in all processes of a job."""
        dev = chain.from_iterable(self.dev_pairs)
        return {
            "the fingerprint of the tokenizer": self.tokenizers.fingerprint,
            "the fingerprint of the training corpus": self.train.fingerprint,
            "the fingerprint of the validation set": fingerprint(dev),
        }


def load_prepared(config: Config, run: RunDirectory, given: Given | None = None) -> Prepared:
    """What `prepare` has made, perhaps in another process."""
    tokenizers = Tokenizers.load(run.tokenizers(config.tokenizer.shared))
    stores = run.load_tokens()
    train, dev = (TokenStore(Path(stores[split]["directory"])) for split in ("train", "dev"))
    dev_pairs = list(read_split(config.data, "dev", given))
    rate, store_of = config.tokenizer.sampling_rate, None
    if rate > 0:
        seed, max_length = config.train.seed, config.data.max_length
        store_of = Resampling(run.epochs, train, tokenizers, rate, seed, max_length)
    return Prepared(tokenizers, train, dev, dev_pairs, store_of)


def open_all(config: Config, given: Given | None = None) -> dict[str, list[Pairs]]:
    """The sources of `train`, `dev` and `test`; raises as `sources.open_sources` does."""
    return {split: open_sources(config.data, split, given) for split in ("train", "dev", "test")}


def inspect_text(
    config: Config, sources: Mapping[str, Sequence[Pairs]], tokenizers: Tokenizers | None
) -> Inspection:
    """Inspects the training text of opened `sources`, which is read once more for it."""
    training = {
        name: _watched(source, "inspecting").read()
        for name, source in zip(config.data.train, sources["train"], strict=True)
    }
    held_out = {
        split: [pair for source in sources[split] for pair in source.read()]
        for split in ("dev", "test")
        if sources[split]
    }
    return inspect_corpus(training, held_out, tokenizers, config.data)


def _check_text(found: Inspection, config: Config, say: Callable[[str], None]) -> None:
    """Tells what was found in the training text, and stops where `config` says so."""
    for line in summarize(found):
        say(line)
    reasons = find_reasons(found)
    if reasons and config.data.inspection == "stop":
        raise UnfitCorpus("; ".join(reasons) + "; --data.inspection warn goes on all the same")
    for reason in reasons:
        say(f"WARNING: {reason}")


def prepare(
    config: Config, run: RunDirectory, say: Callable[[str], None], given: Given | None = None
) -> None:
    """Reads all text, makes what is missing, and reports with `say`.

    A run keeps the tokenizer that it was begun with. Raises UserError for text that cannot be
    trained on, and then leaves no new run behind.
    """
    # Every file is opened and its lines are counted before the first one is read.
    sources = open_all(config, given)
    _check(config, sources)
    folder = Path(config.data.token_directory or run.path.parent / "tokens").expanduser()
    with run.creating(folder):
        files = run.tokenizers(config.tokenizer.shared)
        is_new = not all(file.is_file() for file in files)
        if is_new:
            tokenizers = make_tokenizers(config, sources, say)
        else:
            tokenizers = Tokenizers.load(files)
        # A run that goes on has the very corpus that was inspected when it was begun.
        if is_new and config.data.inspection != "off":
            _check_text(inspect_text(config, sources, tokenizers), config, say)
        else:
            _say_direction(config, sources, say)
        before = run.load_tokens()
        stores = {}
        for split in ("train", "dev"):
            watched = [_watched(source, "tokens of") for source in sources[split]]
            try:
                store = load_or_build(folder.absolute(), watched, tokenizers, config.data)
            except UserError as error:
                raise UserError(f"data.{split}: {error}") from None
            if split in before and before[split]["fingerprint"] != store.fingerprint:
                raise UserError(
                    f"{run.path}: the corpus of data.{split}, or the tokenizer, is not what this "
                    "run was begun with; restore it, or give another --run-directory"
                )
            stores[split] = {"directory": str(store.directory), "fingerprint": store.fingerprint}
            _report(split, store, sources[split], say)
            if split == "train":
                _check_weights(store, sources["train"])
        if is_new:
            run.save_config(config)
            tokenizers.save(files)
        run.save_tokens(stores)


def make_tokenizers(
    config: Config, sources: Mapping[str, Sequence[Pairs]], say: Callable[[str], None]
) -> Tokenizers:
    """Those of a new run, trained on its text or taken from `tokenizer.models`."""
    settings = config.tokenizer
    if settings.models:
        dev = chain.from_iterable(source.read() for source in sources["dev"])
        return _take_tokenizers(settings, list(dev), say)
    size = settings.vocab_size
    if settings.shared:
        say(f"training a tokenizer of {size} pieces")
        sentences = chain.from_iterable(_read_all(sources["train"], "reading"))
        tokenizer = Tokenizer(train_tokenizer(sentences, settings))
        return Tokenizers(tokenizer, tokenizer)
    trained = []
    for side, language in enumerate((config.data.source_language, config.data.target_language)):
        say(f"training a tokenizer of {size} pieces for {language}")
        sentences = (pair[side] for pair in _read_all(sources["train"], "reading"))
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


def _check(config: Config, sources: Mapping[str, Sequence[Pairs]]) -> None:
    for split, found in sources.items():
        for source in found:
            if source.count == 0:
                raise UserError(f"data.{split}: {source.name} is empty: there is no pair to read")
    for source in sources["test"]:  # what is wrong with it should be known before training
        for _ in source.read():
            pass


def _check_weights(store: TokenStore, sources: Sequence[Pairs]) -> None:
    for source, (_, report) in zip(sources, store.reports, strict=True):
        if round(report.kept * source.weight) == 0:
            raise UserError(
                f"data.train: of the {report.kept} pairs kept of {source.name} none would come in "
                "an epoch: give it a greater weight"
            )


def _say_direction(
    config: Config, sources: Mapping[str, Sequence[Pairs]], say: Callable[[str], None]
) -> None:
    """The direction and two pairs, as the inspection tells them."""
    say(f"direction {config.data.source_language} -> {config.data.target_language}")
    for line in show_pairs(islice(sources["train"][0].read(), 2)):
        say(line)


def _report(
    split: str, store: TokenStore, sources: list[Pairs], say: Callable[[str], None]
) -> None:
    for source in sources:
        if source.broken:
            lines = "1 line" if source.broken == 1 else f"{source.broken} lines"
            say(
                f"{split}: {source.name}: {lines} with a lone CR or another control character, "
                "read as a space"
            )
    if len(store.reports) > 1:
        for name, report in store.reports:
            say(f"{split}: {name}: {'; '.join(report.lines())}")
    for line in store.report.lines():
        say(f"{split}: {line}")


def _read_all(sources: Sequence[Pairs], what: str) -> Iterator[Pair]:
    return chain.from_iterable(_watched(source, what).read() for source in sources)


def _watched(source: Pairs, what: str) -> Pairs:
    """The source, with a progress bar where a person looks."""
    options = {"total": source.count, "unit": " pairs", "unit_scale": True, "leave": False}

    def read() -> Iterator[Pair]:
        name = f"{what} {Path(source.name).name}"
        return iter(progress_bar(source.read(), desc=name, disable=not is_watched(), **options))

    return source._replace(read=read)
