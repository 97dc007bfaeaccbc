"""Beam search, ours and others', in turns on the same machine and with the same weights.

Command    python experiments/benchmarks/decode.py [--rounds 5] [--peers transformers ctranslate2]
           for which: pip install torch transformers sentencepiece ctranslate2
           a whole file, from text to text: --text FILE --repeats 1
Prints     seconds a batch or file and sentences a second of each, round by round, and the ratio of
           their medians; `start_seconds` is a new process up to the end of its first round

The weights are random, those of a Marian model of the transformers library, "small": 256 wide,
1,024 in the feed-forward networks, 4 heads, 3 + 3 layers, 8,000 pieces. All translations have a
forced length, so that every contender takes as many steps: 20 tokens for 64 sentences of 20; for a
file that of the source and two more, in others' batches of 64 that of the longest. The beam is 4.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
from turns import Contender, Work, in_turns, tell

from transformer_jax.config import DecodeConfig, MeshConfig, TokenizerConfig
from transformer_jax.convert import from_marian, marian_model_config
from transformer_jax.data.text import read_lines
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.decode import SpecialIds
from transformer_jax.host_memory import keep_freed_memory
from transformer_jax.model.transformer import Transformer
from transformer_jax.sharding import make_mesh
from transformer_jax.translate import Translator, search

VOCAB_SIZE, EOS, UNK, PAD = 8_000, 0, 1, 7_999
SENTENCES, LENGTH, BEAM = 64, 20, 4

Ids = list[list[int]]
TranslateIds = Callable[[Ids, int], Ids]
"""Sentences of a batch without end marks, and the length of their translations -> those."""


class Task(NamedTuple):
    """What is translated, with which model."""

    folder: Path
    """A Marian model as transformers keeps it, as arrays, and as CTranslate2 does; a tokenizer."""
    lines: Sequence[str]
    """Of a file; none for one batch of random tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="in a round of one contender")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--text", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task = Task(Path(folder), list(read_lines(options.text)) if options.text else [])
        write_models(task, "ctranslate2" in options.peers)
        contenders: dict[str, Contender] = {"transformer_jax": partial(ours, task)}
        for peer in options.peers:
            contenders |= {name: partial(make, task) for name, make in PEERS[peer].items()}
        tell(in_turns(contenders, options.rounds, options.repeats, "sentences"), options.json)


# --- Models and text ------------------------------------------------------------------------------


def write_models(task: Task, with_ctranslate2: bool) -> None:
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 1_024))
    }
    config = MarianConfig(
        vocab_size=VOCAB_SIZE,
        d_model=256,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=256,
        eos_token_id=EOS,
        unk_token_id=UNK,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        bos_token_id=None,
        **sizes,
    )
    marian = MarianMTModel(config).eval()
    marian.save_pretrained(task.folder)
    arrays = {name: value.detach().numpy() for name, value in marian.state_dict().items()}
    np.savez(task.folder / "arrays.npz", **arrays)
    if task.lines:
        model = train_tokenizer(task.lines, TokenizerConfig(vocab_size=largest(task.lines)))
        Tokenizer(model).save(task.folder / "tokenizer.model")
    if with_ctranslate2:
        from ctranslate2.converters import TransformersConverter

        write_marian_tokenizer(task.folder)
        for quantization in ("float32", "int8"):
            to = str(task.folder / quantization)
            TransformersConverter(str(task.folder)).convert(to, quantization=quantization)


def largest(lines: Sequence[str]) -> int:
    """Pieces that so little text surely has, and no more than the model."""
    return min(VOCAB_SIZE - 1, 300 + len(set(" ".join(lines).split())))


class MarianIds:
    """The tokenizer, with the special ids of a Marian model: its own pieces begin at 4."""

    pad_id = bos_id = PAD
    eos_id, unk_id = EOS, UNK

    def __init__(self, folder: Path) -> None:
        tokenizer = Tokenizer.load(folder / "tokenizer.model")
        self.encode = tokenizer.encode
        self._decode = tokenizer.decode
        self._end = tokenizer.vocab_size

    def decode(self, ids: Ids) -> list[str]:
        """Of random weights: what is no piece is left out."""
        return self._decode([[one for one in row if 4 <= one < self._end] for row in ids])


def works(task: Task, translate: TranslateIds) -> Iterator[Work]:
    """A batch of random tokens, or a file in batches of sentences of like length."""
    if not task.lines:
        sources = random_sources()
        yield from repeat(Work(lambda: translate(sources, LENGTH), SENTENCES))
    tokenizer = MarianIds(task.folder)

    def translate_file() -> list[str]:
        encoded = tokenizer.encode(list(task.lines))
        order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]))
        found: dict[int, list[int]] = {}
        for start in range(0, len(order), SENTENCES):
            batch = order[start : start + SENTENCES]
            sources = [encoded[number] for number in batch]
            found |= zip(batch, translate(sources, len(sources[-1]) + 2), strict=True)
        return tokenizer.decode([found[number] for number in range(len(encoded))])

    yield from repeat(Work(translate_file, len(task.lines)))


def random_sources() -> Ids:
    random = np.random.default_rng(0)
    return random.integers(4, VOCAB_SIZE - 1, (SENTENCES, LENGTH)).tolist()


# --- Contenders -----------------------------------------------------------------------------------


def ours(task: Task) -> Iterator[Work]:
    keep_freed_memory()
    described = json.loads((task.folder / "config.json").read_text(encoding="utf-8"))
    config = marian_model_config(described)
    params = jax.device_put(from_marian(dict(np.load(task.folder / "arrays.npz")), config))
    model, mesh = Transformer(config, VOCAB_SIZE, PAD), make_mesh(MeshConfig(data=1))
    if task.lines:
        both = SimpleNamespace(source=MarianIds(task.folder), target=MarianIds(task.folder))
        decode = DecodeConfig(beam_size=BEAM, min_length=1_000, max_extra_length=1)
        translator = Translator((model,), both, decode, mesh)
        translate = partial(translator.translate, (params,), task.lines)
        yield from repeat(Work(translate, len(task.lines)))
    decode = DecodeConfig(beam_size=BEAM, min_length=LENGTH)
    special = SpecialIds(pad=PAD, bos=PAD, eos=EOS)
    find = jax.jit(partial(search, (model,), decode, special))
    inputs = np.array([[*source, EOS] for source in random_sources()], np.int32)
    segments, limits = np.ones_like(inputs), np.full((SENTENCES, 1), LENGTH, np.int32)

    def run() -> None:
        with jax.set_mesh(mesh):
            jax.block_until_ready(find((params,), inputs, segments, limits))

    yield from repeat(Work(run, SENTENCES))


def marian_generate(task: Task) -> Iterator[Work]:
    import torch
    from transformers import MarianMTModel

    marian = MarianMTModel.from_pretrained(task.folder).eval()

    def translate(sources: Ids, length: int) -> Ids:
        longest = max(map(len, sources))
        rows = [[*source, EOS, *[PAD] * (longest - len(source))] for source in sources]
        inputs = torch.tensor(rows)
        options = {"min_new_tokens": length, "max_new_tokens": length}
        with torch.inference_mode():
            mask = (inputs != PAD).long()
            found = marian.generate(
                inputs, attention_mask=mask, num_beams=BEAM, do_sample=False, **options
            )
        return found.tolist()

    return works(task, translate)


def ctranslate2(quantization: str, task: Task) -> Iterator[Work]:
    from ctranslate2 import Translator as TheirTranslator

    model = str(task.folder / quantization)
    translator = TheirTranslator(model, device="cpu", compute_type=quantization, inter_threads=1)

    def translate(sources: Ids, length: int) -> Ids:
        results = translator.translate_batch(
            [[*(f"p{token}" for token in source), "</s>"] for source in sources],
            beam_size=BEAM,
            max_batch_size=0,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        found = [result.hypotheses[0] for result in results]
        return [[int(piece[1:]) for piece in row if piece.startswith("p")] for row in found]

    return works(task, translate)


def write_marian_tokenizer(folder: Path) -> None:
    """What CTranslate2 takes the names of the pieces from; the SentencePiece models stay unused."""
    import sentencepiece

    pieces = [f"p{index}" for index in range(VOCAB_SIZE)]
    pieces[EOS], pieces[UNK], pieces[PAD] = "</s>", "<unk>", "<pad>"
    for name in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c d e f g"] * 10),
            model_prefix=str(folder / name),
            vocab_size=12,
            hard_vocab_limit=False,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
    numbered = {piece: index for index, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(numbered), encoding="utf-8")
    described = {"tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")


PEERS = {
    "transformers": {"transformers": marian_generate},
    "ctranslate2": {
        "ctranslate2 float32": partial(ctranslate2, "float32"),
        "ctranslate2 int8": partial(ctranslate2, "int8"),
    },
}

if __name__ == "__main__":
    main()
