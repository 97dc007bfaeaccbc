"""The vocabularies: SentencePiece models, one that both sides share or one each (section 5.1).

Text goes through unchanged: no normalisation (`text.clean_line` has done it), spaces kept, and
characters outside the vocabulary as bytes. The one exception is U+2581, SentencePiece's own mark
for a space, which comes back as a space.
"""

import hashlib
import io
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import sentencepiece

from transformer_jax.config import TokenizerConfig
from transformer_jax.data.text import atomic_writer, clean_line
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

# SentencePiece skips longer lines without a word; UTF-8 has at most 4 bytes a character.
_CHUNK_CHARACTERS = 1_000
_MAX_SENTENCE_BYTES = 4 * _CHUNK_CHARACTERS
_SAMPLE_SEED = 1


def train_tokenizer(
    sentences: Iterable[str], config: TokenizerConfig, text: str = "this corpus"
) -> bytes:
    """The model file of a tokenizer trained on `sentences`; equal input gives equal bytes.

    Blank sentences are skipped, long ones are cut at spaces, and of more than
    `config.max_sentences` an even sample is taken. Raises UserError when no text is left, and when
    `text`, the name of what is trained on, is too small or has too many characters for
    `config.vocab_size`.
    """
    sample = _sample(sentences, config.max_sentences)
    if not sample:
        raise UserError(f"no text to train the tokenizer on: every sentence of {text} is blank")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_drain(sample),
            model_writer=model,
            model_type=config.algorithm,
            vocab_size=config.vocab_size,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            character_coverage=config.character_coverage,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            input_sentence_size=0,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            train_extremely_large_corpus=False,
            # The model file records this number, and sums of a unigram model are rounded by it:
            # one from the machine would change its hash.
            num_threads=16,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explained(str(error), config, text) from None
    return model.getvalue()


def _sample(sentences: Iterable[str], size: int) -> list[str]:
    """At most `size` non-blank stretches of text, each with the same chance.

    SentencePiece could draw them too, but draws others in every process.
    """
    generator = random.Random(_SAMPLE_SEED)
    sample: list[str] = []
    chunks = chain.from_iterable(map(_cut, sentences))
    for count, chunk in enumerate(chunks, start=1):
        if len(sample) < size:
            sample.append(chunk)
        elif (slot := generator.randrange(count)) < size:
            sample[slot] = chunk
    return sample


def _drain(sample: list[str]) -> Iterator[str]:
    """The items from first to last, each freed here once SentencePiece has its copy."""
    sample.reverse()
    while sample:
        yield sample.pop()


def _cut(sentence: str) -> Iterator[str]:
    """The non-blank stretches of a sentence, cut at a space where there is one."""
    start = 0
    while start < len(sentence):
        end = start + _CHUNK_CHARACTERS
        if end < len(sentence):
            space = sentence.rfind(" ", start + 1, end)
            end = space if space > 0 else end
        chunk = sentence[start:end]
        if chunk.strip():
            yield chunk
        start = end


def _explained(message: str, config: TokenizerConfig, text: str) -> UserError:
    """SentencePiece's complaint in terms of this project's options."""
    setting = f"tokenizer.vocab_size is {config.vocab_size}"
    if largest := re.search(r"value <= (\d+)", message):
        size = largest[1]
        return UserError(
            f"{setting}: {text} gives at most {size}; use --tokenizer.vocab_size {size} "
            "or more text"
        )
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        size = smallest[1]
        return UserError(
            f"{setting}: the characters of {text} alone need at least {size}; or give rare ones no "
            "piece of their own, --tokenizer.character-coverage 0.9995"
        )
    return UserError(f"the tokenizer could not be trained: {message}")


class Tokenizer:
    """Sentences to ids and back.

    Text never gives the ids of `pad`, `bos` and `eos`, whatever it says, and gives that of `unk`
    only with a foreign model that has no byte pieces.

    Attributes:
        name: what errors call it, such as the path of its file.
        vocab_size: number of ids, the special ones included.
        pad_id, bos_id, eos_id, unk_id: as the model file has them.
        fingerprint: SHA-256 of the model file, in hexadecimal.
    """

    def __init__(self, model_bytes: bytes, name: str = "the tokenizer") -> None:
        """Raises UserError, naming `name`, for a broken model or one without the special ids."""
        self.name = name
        if not model_bytes:
            raise UserError(f"{name}: empty, not a SentencePiece model")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
            self.vocab_size: int = self._processor.vocab_size()
        except RuntimeError:
            raise UserError(f"{name}: not a SentencePiece model, or a broken one") from None
        self.pad_id: int = self._processor.pad_id()
        self.bos_id: int = self._processor.bos_id()
        self.eos_id: int = self._processor.eos_id()
        self.unk_id: int = self._processor.unk_id()
        self._special_ids = {self.pad_id, self.bos_id, self.eos_id, self.unk_id}
        if self.vocab_size == 0 or min(self._special_ids) < 0 or len(self._special_ids) < 4:
            raise UserError(
                f"{name}: pad, bos, eos and unk have the ids {self.pad_id}, {self.bos_id}, "
                f"{self.eos_id} and {self.unk_id}: they must differ and be 0 or above"
            )
        self.model_bytes = model_bytes
        self.fingerprint = hashlib.sha256(model_bytes).hexdigest()

    @cached_property
    def fallback_ids(self) -> frozenset[int]:
        """The ids of text outside the vocabulary: `unk`, and the pieces that are single bytes."""
        return frozenset(filter(self._processor.is_byte, range(self.vocab_size))) | {self.unk_id}

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Raises UserError for a file that cannot be read or is not such a model."""
        try:
            model_bytes = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
        return cls(model_bytes, str(path))

    def save(self, path: Path) -> None:
        """Writes the model file, whole or not at all. Raises UserError when it cannot."""
        with atomic_writer(path) as file:
            file.write(self.model_bytes)

    def parse(self) -> "ModelProto":
        """The content of the model file."""
        from sentencepiece.sentencepiece_model_pb2 import ModelProto

        return ModelProto.FromString(self.model_bytes)

    @property
    def algorithm(self) -> str:
        """`bpe`, `unigram`, or, of a foreign model, `word` or `char`."""
        spec = self.parse().trainer_spec
        return spec.ModelType.Name(spec.model_type).lower()

    def check(self, config: TokenizerConfig) -> None:
        """Raises UserError where `config`, which names this model, says that it is another one."""
        actual = {"vocab_size": self.vocab_size, "algorithm": self.algorithm}
        for field, value in actual.items():
            if getattr(config, field) != value:
                option = f"--tokenizer.{field.replace('_', '-')}"
                raise UserError(
                    f"tokenizer.{field} is {getattr(config, field)!r}, but {self.name} has "
                    f"{value!r}: use {option} {value}"
                )

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """The ids of each sentence, without an end mark; an empty sentence has none."""
        return self._processor.encode(sentences, out_type=int)

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each list of ids, a single line each; special ids are left out."""
        texts = self._processor.decode(
            [[int(one) for one in sentence if one not in self._special_ids] for sentence in ids]
        )
        # Byte pieces can spell a line feed, which must not become a line of a file.
        return [clean_line(text) for text in texts]

    def pieces(self, ids: list[int]) -> list[str]:
        """The piece of each id as the model file writes it: U+2581 for a space, `<0x0A>` a byte."""
        return self._processor.id_to_piece(ids)


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of each side; one and the same where they share a vocabulary.

    Raises UserError where they have other special ids, or not the same number of pieces.
    """

    source: Tokenizer
    target: Tokenizer

    def __post_init__(self) -> None:
        sizes, special = zip(*(_layout(one) for one in (self.source, self.target)), strict=True)
        if sizes[0] != sizes[1]:
            raise UserError(
                f"{self.source.name} has {sizes[0]} pieces, {self.target.name} {sizes[1]}: "
                "source and target must have as many"
            )
        if special[0] != special[1]:
            raise UserError(
                f"{self.source.name} has pad, bos, eos and unk at {special[0]}, "
                f"{self.target.name} at {special[1]}: they must be the same"
            )

    @classmethod
    def load(cls, paths: Sequence[Path]) -> "Tokenizers":
        """Of one model file for both sides, or of those of source and target."""
        tokenizers = [Tokenizer.load(path) for path in paths]
        return cls(tokenizers[0], tokenizers[-1])

    def save(self, paths: Sequence[Path]) -> None:
        """Writes what `load` reads."""
        for tokenizer, path in zip((self.source, self.target), paths, strict=False):
            tokenizer.save(path)

    @property
    def shared(self) -> bool:
        """Whether both sides have one vocabulary."""
        return self.source is self.target

    @property
    def vocab_size(self) -> int:
        """Number of ids of a side."""
        return self.source.vocab_size

    @property
    def fingerprint(self) -> str:
        """That of the tokenizer, or one of both, where there are two."""
        if self.shared:
            return self.source.fingerprint
        both = self.source.fingerprint + self.target.fingerprint
        return hashlib.sha256(both.encode()).hexdigest()


def _layout(tokenizer: Tokenizer) -> tuple[int, tuple[int, ...]]:
    special = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    return tokenizer.vocab_size, special
