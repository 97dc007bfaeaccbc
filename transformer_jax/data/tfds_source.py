"""Pairs from TensorFlow Datasets: ArrayRecord files, read without TensorFlow.

A data set is made on first use: its texts are downloaded, and `<directory>/<name>/<version>` is
written from them. Any other that lies in the directory in this form is read too.
"""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from types import SimpleNamespace
from typing import NamedTuple

import tensorflow_datasets as tfds
import tensorflow_datasets.translate  # makes the names of WMT known
from tensorflow_datasets.core.download import extractor

from transformer_jax.data.text import clean_line
from transformer_jax.errors import UserError

# Reading one by one takes three times as long.
_CHUNK_EXAMPLES = 1_000


class Split(NamedTuple):
    """A split that was found."""

    count: int
    digest: str
    """Of what tfds says of its files: names, sizes, sentences; not of their content."""
    read: Callable[[], Iterator[tuple[str, str]]]
    """The cleaned (source, target) sentences, in tfds's order."""


def open_tfds(name: str, split: str, directory: str, languages: Sequence[str]) -> Split:
    """Opens a split of a data set, which is made where it is missing.

    Raises UserError where it is unknown or has other languages or splits, where it cannot be made
    or read; its `read` raises it for bytes that are not UTF-8, too.
    """
    builder = _find(name, directory)
    _check_languages(builder, languages)
    _make(builder)
    return _open(builder, split, languages)


def make(name: str, directory: str = "") -> None:
    """Makes a data set where it is missing: for hosts without internet, or before many start."""
    _make(_find(name, directory))


def _find(name: str, directory: str) -> tfds.core.DatasetBuilder:
    folder = os.path.expanduser(directory) or None
    where = (
        f"data.tfds_name is {name!r}: tfds has no such data set; if {folder or 'its folder'} has, "
        "broken or not as ArrayRecord, delete it there"
    )
    with _explained(where):
        return tfds.builder(name, data_dir=folder, file_format="array_record")


def _check_languages(builder: tfds.core.DatasetBuilder, languages: Sequence[str]) -> None:
    features = builder.info.features or {}
    texts = [name for name in features if isinstance(features[name], tfds.features.Text)]
    for side, language in zip(("source", "target"), languages, strict=True):
        if language not in texts:
            raise UserError(
                f"data.{side}_language is {language!r}: {builder.info.full_name} has "
                f"{', '.join(texts) or 'no sentences'}; data.tfds_name chooses another"
            )


def _make(builder: tfds.core.DatasetBuilder) -> None:
    if builder.data_path.exists():
        return
    where = (
        f"{builder.data_path}: no such data set, and it cannot be made here; make it where there "
        "is internet and copy that folder (README.md says how), or train on text files"
    )
    # Standard output is for results.
    with _explained(where), redirect_stdout(sys.stderr), _unpacking_by_python():
        builder.download_and_prepare()


@contextmanager
def _unpacking_by_python() -> Iterator[None]:
    """tfds opens archives, and what it unpacks, with TensorFlow; Python does as well."""
    gfile, compat = SimpleNamespace(GFile=open), SimpleNamespace(as_text=str)
    tensorflow = extractor.tf
    extractor.tf = SimpleNamespace(io=SimpleNamespace(gfile=gfile), compat=compat)
    try:
        yield
    finally:
        extractor.tf = tensorflow


def _open(builder: tfds.core.DatasetBuilder, split: str, languages: Sequence[str]) -> Split:
    if split == "dev" and split not in builder.info.splits:
        split = "validation"
    name = f"split {split!r} of {builder.data_path}"
    where = f"{name} cannot be read; if files are damaged, delete the folder to make it anew"
    with _explained(where):
        examples = builder.as_data_source(split=split)
        facts = [builder.info.full_name, split, len(examples), languages]
        facts += sorted((path.name, path.stat().length) for path in builder.data_path.glob("*"))

    def text(raw: bytes) -> str:
        try:
            return clean_line(raw.decode("utf-8"))
        except UnicodeDecodeError:
            raise UserError(f"{name}: not valid UTF-8: {raw[:60]!r}") from None

    def read() -> Iterator[tuple[str, str]]:
        for start in range(0, len(examples), _CHUNK_EXAMPLES):
            end = min(start + _CHUNK_EXAMPLES, len(examples))
            with _explained(where):
                chunk = examples.__getitems__(range(start, end))
            for example in chunk:
                source, target = (text(example[language]) for language in languages)
                yield source, target

    return Split(len(examples), json.dumps(facts), read)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Any failure of tfds as a UserError of one line: it raises all kinds, with long texts."""
    try:
        yield
    except Exception as error:
        reason = textwrap.shorten(str(error.__cause__ or error), 300)
        raise UserError(f"{what} ({type(error).__name__}: {reason})") from None
