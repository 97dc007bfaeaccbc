"""evaluate RUN: translates a test set and scores it."""

import json
import time
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from transformer_jax.commands.shared import open_run, parse, say, split_first, translate_lines
from transformer_jax.config import Config, DecodeConfig, DistributedConfig
from transformer_jax.errors import UserError
from transformer_jax.run_directory import RunDirectory


@dataclass(frozen=True)
class EvaluateOptions:
    """Scores a run's translations of a test set, by default the one of its configuration."""

    sources: str = ""
    """File of source sentences; empty is the test set of the run."""
    references: str = ""
    """File of reference translations; empty is the test set of the run."""
    directory: str = ""
    """Folder of the run's text files, where it is not the one trained with."""
    step: str = "newest"
    """Checkpoint: `newest`, `best`, or its step."""
    average_last: int = 1
    """Mean of the weights of this many newest checkpoints."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


def run(arguments: list[str]) -> int:
    """Scores the translations of a test set; see `EvaluateOptions`."""
    path, rest = split_first(arguments, "evaluate RUN")
    run, config = open_run(path)
    options = parse("evaluate", EvaluateOptions(decode=config.decode), rest)

    from transformer_jax.distributed import join

    join(options.distributed)
    evaluate_run(run, config, options)
    return 0


def evaluate_run(run: RunDirectory, config: Config, options: EvaluateOptions) -> None:
    from transformer_jax.data.corpus import read_split
    from transformer_jax.data.text import fingerprint, read_pairs, write_lines
    from transformer_jax.distributed import check_agreement, is_first
    from transformer_jax.evaluate import bleu
    from transformer_jax.loading import load

    if bool(options.sources) != bool(options.references):
        raise UserError("give both --sources and --references, or neither for the run's test set")
    if options.sources:
        name = Path(options.sources).stem
        sources, references = (Path(p).expanduser() for p in (options.sources, options.references))
        pairs = list(read_pairs(sources, references))
    else:
        if not config.data.test:
            raise UserError("this run has no test set: give --sources and --references")
        name = Path(config.data.test).name
        data = config.data
        if options.directory:
            data = replace(data, directory=options.directory)
        pairs = list(read_split(data, "test"))
    if not pairs:
        raise UserError(f"test set {name}: no sentences to score")
    check_agreement({"the test set": fingerprint(chain.from_iterable(pairs))})
    model = load(run, options.decode, options.step, options.average_last)
    check_agreement({"the checkpoint": model.checkpoint})
    start = time.monotonic()
    translations = translate_lines(model, [source for source, _ in pairs])
    seconds = time.monotonic() - start
    hypotheses = [translation.text for translation in translations]
    score = bleu(hypotheses, [target for _, target in pairs], config.data.target_language)
    if not is_first():
        return
    stem = model.checkpoint.replace(" ", "-").replace(",", "")
    search = f"beam{options.decode.beam_size}-alpha{options.decode.length_penalty:g}"
    file = run.evaluations / f"{name}.{stem}.{search}.{config.data.target_language}"
    run.evaluations.mkdir(exist_ok=True)
    write_lines(file, hypotheses)
    result = {
        "test_set": name,
        "checkpoint": model.checkpoint,
        "BLEU": round(score.score, 2),
        "signature": score.signature,
        "sentences": len(pairs),
        "unfinished": sum(not translation.finished for translation in translations),
        "beam_size": options.decode.beam_size,
        "length_penalty": options.decode.length_penalty,
        "max_extra_length": options.decode.max_extra_length,
        "minutes_trained": round(model.minutes_trained, 1),
        "seconds": round(seconds, 1),
        "hypotheses": str(file),
    }
    line = json.dumps(result, ensure_ascii=False)
    with run.results.open("a", encoding="utf-8", newline="\n") as results:
        results.write(line + "\n")
    for (source, target), hypothesis in list(zip(pairs, hypotheses, strict=True))[:3]:
        say(f"  source      {source}\n  reference   {target}\n  hypothesis  {hypothesis}\n")
    say(f"BLEU {score.score:.2f} on {name}, {score.signature}")
    say(f"hypotheses in {file}, results in {run.results}")
    print(line)
