"""What is translated and scored: files, a run's own test set, or one of sacreBLEU's.

Scores of different texts are not comparable, and texts of one name may differ: newstest2014 has
3,003 pairs (sacreBLEU's `wmt14/full`), of which the official evaluation of English and German took
2,737 (its `wmt14`). So a known text is named by its content, wherever it comes from.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from tarfile import TarError
from typing import NamedTuple

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import Given, read_split, split_of
from transformer_jax.data.text import fingerprint, read_lines
from transformer_jax.errors import UserError

PREFIX = "sacrebleu:"

_FULL, _FILTERED = "wmt14/full", "wmt14"
_SIZES = {_FULL: 3_003, _FILTERED: 2_737}
_NEWSTEST2014 = {  # of English and German, in either direction, and of English and French
    "4a985a11abe33ac60b00f0e73abc6fbce0c73ccba9133cbdfd6fb58e09474b87": _FULL,
    "7bc9281c047fe56b54c09a54a23431c47115f689466945b82b6bf2f9ec3d37b3": _FULL,
    "63a4e249ecc5c220076ea643b6b48d6a560d64b007e2e18caceb0a4c921cedf3": _FILTERED,
    "1b19fe79904f62295d987a3640c9c6ee15ec66034f385fc8e0fb79a1a631ef34": _FILTERED,
    "4eaed4067ed3072e3067eb1393af7a6c9c9d79de42313292cd603605a3dc6c69": _FULL,
    "176dba2bfc7f760c69a951a709284230256ae9ec527c98c36368212706bce7ae": _FULL,
}
"""Fingerprints of the references, sorted, since tfds shuffles, and with single spaces."""


class TestSet(NamedTuple):
    """Sources, none where only files of translations are scored, and one or several references."""

    name: str
    sources: list[str]
    references: dict[str, list[str]]
    """Lines by the name of their reference."""
    source_file: str = ""
    """The file of the sources, where one was named."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the sources and then the references, in hexadecimal."""
        return fingerprint(chain(self.sources, *self.references.values()))

    def doubt(self, languages: Iterable[str]) -> str:
        """Why its name may mislead; empty where it does not, or its true text is not known."""
        if "newstest2014" not in self.name or not set(languages) <= {"en", "de", "fr", ""}:
            return ""
        lines = len(next(iter(self.references.values())))
        return (
            f"{self.name} is neither the text of sacreBLEU's wmt14/full (3003 lines) nor that of "
            f"its wmt14 (2737): it has {lines} lines, and its scores are not comparable with theirs"
        )


def read_files(sources: str, references: Sequence[str]) -> TestSet:
    """A test set of files, named after the first of them; `sources` may be empty.

    Raises UserError where files differ in their numbers of lines, and as `text.read_lines` does.
    """
    if len(set(references)) < len(references):
        raise UserError(f"--references names a file twice: {' '.join(references)}")
    texts = {path: _read(path) for path in ([sources] if sources else []) + list(references)}
    first = next(iter(texts))
    for path, lines in texts.items():
        if len(lines) != len(texts[first]):
            raise UserError(
                f"{first} has {len(texts[first])} lines but {path} has {len(lines)}: "
                "line i of one must translate line i of the other"
            )
    # The whole name but the ending, which is the language, and that of an archive.
    name = Path(Path(first).name.removesuffix(".gz").removesuffix(".xz")).stem
    named = {path: texts[path] for path in references}
    test_set = _checked(name, texts[sources] if sources else [], named)
    return test_set._replace(source_file=sources)


def _read(path: str) -> list[str]:
    return list(read_lines(Path(path).expanduser()))


def read_own(data: DataConfig, given: Given | None = None) -> TestSet:
    """The test set of a run's configuration. Raises UserError as `sources.read_split` does."""
    if not data.test:
        raise UserError("this run has no test set: give --sources and --references, or --test-set")
    pairs = list(read_split(data, "test", given))
    (source,) = data.sources("test")
    name = Path(source.name).name
    if source.kind == "tfds":
        data_set, name = split_of(source.name)
        if data_set.startswith("wmt14_translate") and name == "test":
            name = "newstest2014"
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    return _checked(name, sources, {data.test: targets})


def read_sacrebleu(name: str, languages: tuple[str, str], say: Callable[[str], None]) -> TestSet:
    """One of sacreBLEU's own test sets, downloaded by it into its cache where it is not there.

    Raises UserError where sacreBLEU has no such set, or it cannot be had.
    """
    from sacrebleu.dataset import DATASETS
    from sacrebleu.utils import SACREBLEU_DIR

    name = name.removeprefix(PREFIX)
    if name not in DATASETS:
        raise UserError(f"{PREFIX}{name}: sacreBLEU has no such test set; see `sacrebleu --list`")
    dataset, pair = DATASETS[name], "-".join(languages)
    if pair not in dataset.langpairs:
        known = ", ".join(sorted(dataset.langpairs))
        raise UserError(f"{PREFIX}{name} has no languages {pair!r}; it has {known}")
    cache = Path(SACREBLEU_DIR) / name
    if not (cache / f"{name.replace('/', '_')}.{pair}.src").is_file():
        say(f"downloading {PREFIX}{name} into {cache}")
    try:
        source = dataset.get_source_file(pair)
        references = dataset.get_reference_files(pair)
    except (OSError, EOFError, TarError, SystemExit) as error:
        raise UserError(
            f"{PREFIX}{name} is not in sacreBLEU's cache {cache}, and cannot be downloaded "
            f"({error}); copy that folder from a machine with internet, or set SACREBLEU"
        ) from None
    texts = read_files(source, references)
    size = _SIZES.get(name)
    if "de" in languages and size and len(texts.sources) != size:
        raise UserError(
            f"{PREFIX}{name} must have {size} lines but {source} has {len(texts.sources)}: "
            f"delete {cache}"
        )
    named = {os.path.basename(path): lines for path, lines in texts.references.items()}
    return TestSet(f"{PREFIX}{name}", texts.sources, named)


def _checked(name: str, sources: list[str], references: dict[str, list[str]]) -> TestSet:
    """A test set named by its content, where that is known."""
    known = {_NEWSTEST2014.get(_content(lines), "") for lines in references.values()} - {""}
    if len(known) == 1:
        name = PREFIX + known.pop()
    test_set = TestSet(name, sources, references)
    if not any(map(len, references.values())):
        raise UserError(f"test set {name}: no sentences to score")
    return test_set


def _content(lines: Iterable[str]) -> str:
    return fingerprint(sorted(" ".join(line.split()) for line in lines))
