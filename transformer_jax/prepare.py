"""What happens before step 1: the tokenizer and the token stores of a run."""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import Config
from transformer_jax.data.corpus import TokenStore, load_or_build
from transformer_jax.data.sources import Given, Pair, Pairs, open_sources, read_split
from transformer_jax.data.text import atomic_writer, fingerprint
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.run_directory import RunDirectory


class Prepared(NamedTuple):
    """The text of a run as tokens."""

    tokenizer: Tokenizer
    train: TokenStore
    dev: TokenStore
    dev_pairs: list[Pair]
    """All pairs of the validation set as text; BLEU is scored on every one."""

    def fingerprints(self) -> dict[str, str]:
        """What must be the same in all processes of a job."""
        dev = chain.from_iterable(self.dev_pairs)
        return {
            "the fingerprint of the tokenizer": self.tokenizer.fingerprint,
            "the fingerprint of the training corpus": self.train.fingerprint,
            "the fingerprint of the validation set": fingerprint(dev),
        }


def load_prepared(config: Config, run: RunDirectory, given: Given | None = None) -> Prepared:
    """What `prepare` has made, perhaps in another process."""
    tokenizer = Tokenizer.load(run.tokenizer)
    stores = json.loads(run.tokens.read_text(encoding="utf-8"))
    train, dev = (TokenStore(Path(stores[split]["directory"])) for split in ("train", "dev"))
    return Prepared(tokenizer, train, dev, list(read_split(config.data, "dev", given)))


def prepare(
    config: Config, run: RunDirectory, say: Callable[[str], None], given: Given | None = None
) -> None:
    """Reads all text, makes what is missing, and reports with `say`.

    A run keeps the tokenizer that it was begun with. Raises UserError for text that cannot be
    trained on, and then leaves no new run behind.
    """
    # Every file is opened and its lines are counted before the first one is read.
    sources = {split: open_sources(config.data, split, given) for split in ("train", "dev", "test")}
    _check(config, sources)
    folder = Path(config.data.token_directory or run.path.parent / "tokens").expanduser()
    with run.creating(folder):
        is_new = not run.tokenizer.is_file()
        if is_new:
            say(f"training a tokenizer of {config.tokenizer.vocab_size} pieces")
            sentences = chain.from_iterable(_read_all(sources["train"], "reading"))
            tokenizer = Tokenizer(train_tokenizer(sentences, config.tokenizer))
        else:
            tokenizer = Tokenizer.load(run.tokenizer)
        before = json.loads(run.tokens.read_text(encoding="utf-8")) if run.tokens.exists() else {}
        stores = {}
        for split in ("train", "dev"):
            watched = [_watched(source, "tokens of") for source in sources[split]]
            store = load_or_build(folder.absolute(), watched, tokenizer, config.data)
            if split in before and before[split]["fingerprint"] != store.fingerprint:
                raise UserError(
                    f"{run.path}: data.{split} or tokenizer.model is not what this run was begun "
                    "with; restore it, or give another --run-directory"
                )
            stores[split] = {"directory": str(store.directory), "fingerprint": store.fingerprint}
            _report(split, store, sources[split], say)
        if is_new:
            run.save_config(config)
            tokenizer.save(run.tokenizer)
        with atomic_writer(run.tokens) as file:
            file.write(json.dumps(stores, indent=2).encode())


def _check(config: Config, sources: dict[str, list[Pairs]]) -> None:
    if config.data.test and not sum(source.count for source in sources["test"]):
        raise UserError(f"data.test is {config.data.test!r}: no sentences to score")
    for source in sources["train"]:
        if round(source.count * source.weight) == 0:
            raise UserError(
                f"data.train: {source.name} has {source.count} pairs, so that with the weight "
                f"{source.weight:g} none of them would come in an epoch"
            )


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


def _read_all(sources: list[Pairs], what: str) -> Iterator[Pair]:
    return chain.from_iterable(_watched(source, what).read() for source in sources)


def _watched(source: Pairs, what: str) -> Pairs:
    """The source, with a progress bar where a person looks."""
    from tqdm.auto import tqdm

    watched = sys.stderr.isatty() or "ipykernel" in sys.modules
    options = {"total": source.count, "unit": " pairs", "unit_scale": True, "leave": False}

    def read() -> Iterator[Pair]:
        name = f"{what} {Path(source.name).name}"
        return iter(tqdm(source.read(), desc=name, disable=not watched, **options))

    return source._replace(read=read)
