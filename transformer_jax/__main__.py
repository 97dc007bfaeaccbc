"""The command line: train, translate, evaluate, compile."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from transformer_jax.config import Config, DecodeConfig, DistributedConfig
from transformer_jax.errors import UserError
from transformer_jax.experiment import load_experiment
from transformer_jax.run_directory import RunDirectory, flatten

if TYPE_CHECKING:
    from transformer_jax.load import LoadedModel
    from transformer_jax.prepare import Prepared

# Every subcommand imports what it needs when it runs: `--help` should not wait for JAX.

USAGE = """usage: transformer-jax COMMAND ...

  train EXPERIMENT [--section.field VALUE ...]   train, or go on with, an experiment file
  translate RUN [options]                        translate lines of text
  evaluate RUN [options]                         translate a test set and score it
  compile EXPERIMENT --topology v5e:4x4 [...]    memory and estimated time on devices not there

COMMAND --help lists the options of a command."""

Options = TypeVar("Options")


@dataclass(frozen=True)
class TranslateOptions:
    """Translates text, a line for a line, with a run's newest checkpoint."""

    input: str = "-"
    """File of source sentences; - is standard input."""
    output: str = "-"
    """File to write translations to; - is standard output."""
    step: str = "newest"
    """Checkpoint: `newest`, `best`, or its step."""
    average_last: int = 1
    """Mean of the weights of this many newest checkpoints."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


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


@dataclass(frozen=True)
class CompileOptions(Config):
    """Compiles an experiment for devices that need not be there, and prints what they would need.

    Times are the compiler's estimates, not measurements.
    """

    topology: str = ""
    """`v4:2x2x1`, `v5e:4x4`, `v5p:2x2x1`, `v6e:4x4`, `tpu7x:2x2x1`, of any size; or `cpu:8`."""
    what: Literal["train", "decode"] = "train"
    """`train`: an update of the largest batch; `decode`: the beam search of a batch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status: 0, 2 for a user's mistake, 128 + a signal."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    commands = {
        "train": train,
        "translate": translate,
        "evaluate": evaluate,
        "compile": compile_program,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name, rest = arguments[0], arguments[1:]
    try:
        if name not in commands:
            raise UserError(f"no command {name!r}; the commands are {', '.join(commands)}")
        status = commands[name](rest)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"transformer-jax: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # What read standard output has ended, as `head` does; without this Python complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"transformer-jax: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("transformer-jax: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def train(arguments: list[str]) -> int:
    """Trains an experiment, or goes on with it, and evaluates it at the end."""
    path, rest = _split_first(arguments, "train EXPERIMENT")
    config = _parse("train", load_experiment(path) if path else Config(), rest)
    run = RunDirectory(config.run_directory)
    run.check_same_experiment(config)

    from transformer_jax import distributed
    from transformer_jax.checkpoint import Checkpoints
    from transformer_jax.model.transformer import Transformer
    from transformer_jax.train import Evaluation, StopSignal, Trainer, make_dev_loss

    distributed.join(config.distributed)
    text = _prepare(config, run)
    tokenizer = text.tokenizer
    model = Transformer(config.model, tokenizer.vocab_size, tokenizer.bos_id)
    stop = StopSignal()
    with Checkpoints(run.checkpoints, config.checkpoint) as checkpoints:
        trainer = Trainer(config, run, model, text.train, checkpoints)
        trainer.resume()
        distributed.on_first(lambda: run.save_config(config))
        for line in trainer.summary():
            _say(line)
        with_bleu = config.train.dev_bleu_interval > 0
        evaluations = [
            Evaluation(
                config.train.dev_loss_interval,
                make_dev_loss(config, model, text.dev, trainer, stop),
                score="" if with_bleu else "negative_loss",
            ),
            Evaluation(
                config.train.dev_bleu_interval,
                _make_dev_bleu(config, model, text, trainer, stop),
                score="BLEU",
            ),
        ]
        trainer.train(evaluations, stop)
    _say(f"saved step {trainer.step} in {run.checkpoints}")
    if stop.number:
        _say("stopped by a signal; the same command goes on from here")
        return 128 + stop.number
    _say(f"trained {trainer.step} updates in {trainer.progress.seconds / 60:.1f} minutes")
    if config.data.test:
        _evaluate_run(run, config, EvaluateOptions(decode=config.decode))
    return 0


def _prepare(config: Config, run: RunDirectory) -> "Prepared":
    """The text of the run as tokens, made by the first process, the same in all."""
    from transformer_jax.distributed import check_agreement, everywhere, on_first
    from transformer_jax.prepare import load_prepared, prepare

    settings = flatten(config)
    check_agreement({n: v for n, v in settings.items() if not n.startswith("distributed.")})
    on_first(lambda: prepare(config, run, _say))
    text = everywhere(lambda: load_prepared(config, run))
    check_agreement(text.fingerprints())
    return text


def translate(arguments: list[str]) -> int:
    """Translates a file or standard input, line by line."""
    path, rest = _split_first(arguments, "translate RUN")
    run, config = _open_run(path)
    options = _parse("translate", TranslateOptions(decode=config.decode), rest)

    from transformer_jax import distributed
    from transformer_jax.data.text import fingerprint, read_lines, read_stream, write_lines
    from transformer_jax.load import load

    distributed.join(options.distributed)
    if options.distributed.enabled and options.input == "-":
        raise UserError("of several processes each must read the text: give --input, a file")

    def read() -> list[str]:
        if options.input == "-":
            return list(read_stream(sys.stdin.buffer, "standard input"))
        return list(read_lines(Path(options.input).expanduser()))

    lines = distributed.everywhere(read)
    distributed.check_agreement({"the text to translate": fingerprint(lines)})
    model = load(run, options.decode, options.step, options.average_last)
    distributed.check_agreement({"the checkpoint": model.checkpoint})

    def translations() -> Iterator[str]:  # begun when the output is open
        for translation in _translate(model, lines):
            yield translation.text

    if not distributed.is_first():
        list(translations())
    elif options.output == "-":
        sys.stdout.buffer.write("".join(f"{text}\n" for text in translations()).encode())
    else:
        write_lines(Path(options.output).expanduser(), translations())
    return 0


def evaluate(arguments: list[str]) -> int:
    """Scores the translations of a test set; see `EvaluateOptions`."""
    path, rest = _split_first(arguments, "evaluate RUN")
    run, config = _open_run(path)
    options = _parse("evaluate", EvaluateOptions(decode=config.decode), rest)

    from transformer_jax.distributed import join

    join(options.distributed)
    _evaluate_run(run, config, options)
    return 0


def compile_program(arguments: list[str]) -> int:
    """Compiles an experiment for a topology; see `CompileOptions`."""
    path, rest = _split_first(arguments, "compile EXPERIMENT")
    config = load_experiment(path) if path else Config()
    default = CompileOptions(**{one.name: getattr(config, one.name) for one in fields(config)})
    options = _parse("compile", default, rest)
    if not options.topology:
        raise UserError("give --topology, such as v5e:4x4, v5p:2x2x1 or cpu:8")
    _look_for_no_tpu()

    from transformer_jax.compile import compile_for, describe, to_json

    report = compile_for(options, options.topology, options.what)
    for line in describe(report):
        _say(line)
    print(json.dumps(to_json(report)))
    return 0


def _split_first(arguments: list[str], usage: str) -> tuple[str, list[str]]:
    """The first argument, a path, and the options; no path where help is asked for."""
    if any(argument in ("-h", "--help") for argument in arguments[:1]):
        return "", arguments
    if not arguments or arguments[0].startswith("-"):
        raise UserError(f"usage: transformer-jax {usage} [options]; the path comes first")
    return arguments[0], arguments[1:]


def _parse(command: str, default: Options, arguments: list[str]) -> Options:
    """`default` with the options given; tyro explains a wrong one and exits with status 2."""
    import tyro

    return tyro.cli(
        type(default), prog=f"transformer-jax {command}", default=default, args=arguments
    )


def _open_run(path: str) -> tuple[RunDirectory, Config]:
    run = RunDirectory(path)
    return run, run.load_config() if path else Config()


def _say(text: str) -> None:
    """Tells the user; of several processes, which JAX has joined, the first one does."""
    if "jax" not in sys.modules or sys.modules["jax"].process_index() == 0:
        print(text, file=sys.stderr, flush=True)


def _look_for_no_tpu() -> None:
    """Lets JAX, not yet imported, and the TPU's compiler run on any machine, one with TPUs too."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # do not ask the cloud what this machine is
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # else a lock is left that stops the next one
    # Only so that it does not complain: they are the topology's, whatever these say.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def _make_dev_bleu(config, model, text, trainer, stop) -> Callable:
    """An evaluator of BLEU on the validation set, by beam search with all its pairs."""
    from transformer_jax.evaluate import bleu
    from transformer_jax.translate import Translator

    translator = Translator(model, text.tokenizer, config.decode, trainer.mesh)
    sources, references = zip(*text.dev_pairs, strict=True)

    def evaluate_bleu(params, step: int) -> dict[str, float]:
        translations = translator.translate(params, sources, lambda done: stop.check())
        hypotheses = [translation.text for translation in translations]
        return {
            "BLEU": bleu(hypotheses, references, config.data.target_language).score,
            "unfinished": sum(not translation.finished for translation in translations),
        }

    return evaluate_bleu


def _translate(model: "LoadedModel", lines: Sequence[str]) -> list:
    """Translates with a progress bar where a person looks, and reports what was cut."""
    from tqdm.auto import tqdm

    from transformer_jax.distributed import is_first

    watched = is_first() and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    with tqdm(total=len(lines), unit="line", disable=not watched) as bar:
        translations = model.translator.translate(
            model.params, lines, lambda done: bar.update(done - bar.n) and None
        )
    for number, translation in enumerate(translations, start=1):
        if translation.parts > 1:
            _say(f"line {number} is long: it was translated in {translation.parts} parts")
    cut = sum(not translation.finished for translation in translations)
    if cut:
        _say(f"{cut} of {len(lines)} translations reached the longest length allowed")
    empty = sum(
        bool(line.strip()) and not translation.text.strip()
        for line, translation in zip(lines, translations, strict=True)
    )
    if empty:
        _say(f"{empty} of {len(lines)} translations are empty, though their sources are not")
    return translations


def _evaluate_run(run: RunDirectory, config: Config, options: EvaluateOptions) -> None:
    from transformer_jax.data.corpus import read_split
    from transformer_jax.data.text import fingerprint, read_pairs, write_lines
    from transformer_jax.distributed import check_agreement, is_first
    from transformer_jax.evaluate import bleu
    from transformer_jax.load import load

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
    translations = _translate(model, [source for source, _ in pairs])
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
        _say(f"  source      {source}\n  reference   {target}\n  hypothesis  {hypothesis}\n")
    _say(f"BLEU {score.score:.2f} on {name}, {score.signature}")
    _say(f"hypotheses in {file}, results in {run.results}")
    print(line)


if __name__ == "__main__":
    sys.exit(main())
