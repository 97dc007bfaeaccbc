"""Stand-ins for the WMT14 data sets of tfds: real ArrayRecord files of few sentences."""

from pathlib import Path
from unittest import mock

import tensorflow_datasets as tfds
from tensorflow_datasets.translate.wmt14 import Wmt14Translate

Pairs = list[tuple[str, str]]


def make_wmt14(directory: Path, language: str, **splits: Pairs) -> None:
    """Makes `wmt14_translate/<language>-en` in a folder from (foreign, English) pairs by split."""

    def generators(self, manager) -> dict:
        return {
            split: [(i, {language: foreign, "en": english}) for i, (foreign, english) in rows]
            for split, rows in ((split, enumerate(pairs)) for split, pairs in splits.items())
        }

    with mock.patch.object(Wmt14Translate, "_split_generators", generators):
        name = f"wmt14_translate/{language}-en"
        builder = tfds.builder(name, data_dir=directory, file_format="array_record")
        builder.download_and_prepare()
