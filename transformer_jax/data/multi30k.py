"""Multi30k, image captions in several languages: fetched on first use, or read from a folder.

Its licence allows research, and no trade: see https://github.com/multi30k/dataset.
"""

import os
from pathlib import Path

from transformer_jax.data.download import download
from transformer_jax.data.text import find_file, scan
from transformer_jax.errors import UserError

ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
DIGESTS = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    "test_2017_flickr.en": "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98",
    "test_2017_flickr.de": "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081",
    "test_2017_flickr.fr": "6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6",
}
"""SHA-256 of the raw texts, unpacked."""


def fetch(directory: str, name: str, languages: tuple[str, str]) -> tuple[Path, Path]:
    """The files of a part, such as `train`, in two languages: those in `directory`, or fetched.

    An empty `directory` is `~/.cache/transformer_jax/multi30k`. Raises UserError for a part or
    language that is not known, where a file is neither there nor can be fetched, and for one of
    this name that holds other text.
    """
    folder = Path(directory or "~/.cache/transformer_jax/multi30k").expanduser()
    source, target = (_fetch_one(folder, name, language) for language in languages)
    return source, target


def _fetch_one(folder: Path, name: str, language: str) -> Path:
    file = f"{name}.{language}"
    if file not in DIGESTS:
        raise UserError(f"multi30k:{name} in {language!r}: known are {', '.join(DIGESTS)}")
    if not any(os.path.isfile(folder / f"{file}{suffix}") for suffix in ("", ".gz", ".xz")):
        download(f"{ADDRESS}/{file}.gz", folder / f"{file}.gz", DIGESTS[file])
    path = find_file(str(folder), name, language)
    if scan(path).digest != DIGESTS[file]:
        raise UserError(f"{path}: not Multi30k's raw text; name your own files without multi30k")
    return path
