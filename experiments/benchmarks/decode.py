"""Beam search, ours and others', in turns on the same machine and with the same weights.

Command    python experiments/benchmarks/decode.py [--rounds 5] [--peers transformers ctranslate2]
           for which: pip install torch transformers sentencepiece ctranslate2
Prints     seconds a batch and sentences a second of each, round by round, and the ratio of their
           medians

The weights are random, those of a Marian model of the transformers library, "small": 256 wide,
1,024 in the feed-forward networks, 4 heads, 3 + 3 layers, 8,000 pieces. 64 sentences of 20 tokens
are translated with a beam of 4, and all translations are forced to 20 tokens, so that every
contender takes as many steps.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import jax
import numpy as np
from turns import Work, in_turns, tell

from transformer_jax.config import DecodeConfig, MeshConfig
from transformer_jax.convert import from_marian, marian_model_config
from transformer_jax.decode import SpecialIds
from transformer_jax.host_memory import keep_freed_memory
from transformer_jax.model.transformer import Transformer
from transformer_jax.sharding import make_mesh
from transformer_jax.translate import search

VOCAB_SIZE, EOS, UNK, PAD = 8_000, 0, 1, 7_999
SENTENCES, LENGTH, BEAM = 64, 20, 4

Translate = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="in a round of one contender")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    marian = make_marian()
    random = np.random.default_rng(0)
    sources = random.integers(4, VOCAB_SIZE - 1, (SENTENCES, LENGTH)).tolist()
    contenders = {"transformer_jax": ours(marian, sources)}
    for peer in options.peers:
        contenders |= PEERS[peer](marian, sources)
    works = {name: repeat(Work(one, SENTENCES)) for name, one in contenders.items()}
    tell(in_turns(works, options.rounds, options.repeats, "sentences"), options.json)


def make_marian() -> Any:
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
    return MarianMTModel(config).eval()


def ours(marian: Any, sources: Sequence[Sequence[int]]) -> Translate:
    config = marian_model_config(marian.config.to_dict())
    params = from_marian(
        {name: value.detach().numpy() for name, value in marian.state_dict().items()}, config
    )
    model, mesh = Transformer(config, VOCAB_SIZE, PAD), make_mesh(MeshConfig(data=1))
    decode = DecodeConfig(beam_size=BEAM, min_length=LENGTH)
    special = SpecialIds(pad=PAD, bos=PAD, eos=EOS)
    find = jax.jit(partial(search, (model,), decode, special))
    inputs = np.array([[*source, EOS] for source in sources], np.int32)
    segments, limits = np.ones_like(inputs), np.full((SENTENCES, 1), LENGTH, np.int32)
    params = jax.device_put(params)

    def translate() -> None:
        with jax.set_mesh(mesh):
            jax.block_until_ready(find((params,), inputs, segments, limits))

    return translate


def marian_generate(marian: Any, sources: Sequence[Sequence[int]]) -> dict[str, Translate]:
    import torch

    inputs = torch.tensor([[*source, EOS] for source in sources])

    def translate() -> None:
        with torch.inference_mode():
            marian.generate(
                inputs,
                num_beams=BEAM,
                min_new_tokens=LENGTH,
                max_new_tokens=LENGTH,
                do_sample=False,
            )

    return {"transformers": translate}


def ctranslate2(marian: Any, sources: Sequence[Sequence[int]]) -> dict[str, Translate]:
    """In float32, and with weights of 8 bits."""
    import ctranslate2 as ct2
    from transformers import MarianTokenizer

    pieces = [f"p{index}" for index in range(VOCAB_SIZE)]
    pieces[EOS], pieces[UNK], pieces[PAD] = "</s>", "<unk>", "<pad>"
    contenders = {}
    with tempfile.TemporaryDirectory() as folder:
        marian.save_pretrained(folder)
        write_tokenizer(Path(folder), pieces)
        MarianTokenizer.from_pretrained(folder)  # that it can be read is said here
        for quantization in ("float32", "int8"):
            to = f"{folder}/{quantization}"
            ct2.converters.TransformersConverter(folder).convert(to, quantization=quantization)
            translator = ct2.Translator(
                to, device="cpu", compute_type=quantization, inter_threads=1
            )
            words = [[*(pieces[token] for token in source), "</s>"] for source in sources]
            contenders[f"ctranslate2 {quantization}"] = partial(
                translator.translate_batch,
                words,
                beam_size=BEAM,
                max_batch_size=0,
                min_decoding_length=LENGTH,
                max_decoding_length=LENGTH,
            )
    return contenders


def write_tokenizer(folder: Path, pieces: Sequence[str]) -> None:
    """What the transformers library wants beside a Marian model; its text is never used."""
    import sentencepiece

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
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "MarianTokenizer"}), encoding="utf-8"
    )


PEERS = {"transformers": marian_generate, "ctranslate2": ctranslate2}

if __name__ == "__main__":
    main()
