"""`evaluate` of files and of runs: what is compared, what is told, and where results are kept."""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import builders
import pytest
import sacrebleu

from transformer_jax.__main__ import main
from transformer_jax.checkpoint import Checkpoints, Progress
from transformer_jax.config import Config, DecodeConfig
from transformer_jax.data.text import read_lines, write_lines
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.experiment import to_json
from transformer_jax.loading import Choice
from transformer_jax.model.transformer import Transformer
from transformer_jax.prepare import prepare
from transformer_jax.run_directory import RunDirectory
from transformer_jax.train_step import init_state
from transformer_jax.translate import Hypothesis, Translation

pytestmark = pytest.mark.usefixtures("one_device")

DATA = Path(__file__).parent / "data"
F01 = DATA / "F01_refs"
TARGET = ["--target-language", "en"]


def results_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[dict], str]:
    """The results on standard output, and what is said on standard error."""
    assert main(["evaluate", *arguments]) == 0
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["evaluate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err


@pytest.fixture(scope="module")
def run(
    one_device: None, tmp_path_factory: pytest.TempPathFactory, tiny_config: Callable[..., Config]
) -> Path:
    """A run with two checkpoints, whose weights are new ones."""
    config = tiny_config(tmp_path_factory.mktemp("folder") / "run")
    directory = RunDirectory(config.run_directory)
    prepare(config, directory, lambda text: None)
    (tokenizer,) = map(Tokenizer.load, directory.tokenizers(shared=True))
    model = Transformer(config.model, tokenizer.vocab_size, tokenizer.bos_id)
    state, _ = init_state(config, model, builders.one_device())
    with Checkpoints(directory.checkpoints, config.checkpoint) as checkpoints:
        for step in (2, 4):
            checkpoints.save(step, state, Progress())
    return directory.path


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[str]]], None]:
    """Gives runs, by the name of their folder, the translations that they make."""

    def set_texts(texts: dict[str, list[str]]) -> None:
        from transformer_jax.loading import load

        loaded = []

        def load_noted(choices: list[Choice], decode: DecodeConfig) -> object:
            loaded.append(choices[0].run.path.name)
            return load(choices, decode)

        def translate_lines(model: object, lines: list[str]) -> list[Translation]:
            assert len(lines) == len(texts[loaded[-1]])
            hypotheses = (Hypothesis(text, -1.0, -1.0, True, [[5]]) for text in texts[loaded[-1]])
            return [Translation([hypothesis], True, [[5]]) for hypothesis in hypotheses]

        monkeypatch.setattr("transformer_jax.loading.load", load_noted)
        monkeypatch.setattr("transformer_jax.commands.systems.translate_lines", translate_lines)

    return set_texts


def with_seed(run: Path, folder: Path, seed: int, **changes: object) -> Path:
    """A copy of a run that is one of another seed."""
    copy = folder / f"seed{seed}"
    shutil.copytree(run, copy)
    config = RunDirectory(str(run)).load_config()
    train = dataclasses.replace(config.train, seed=seed)
    config = dataclasses.replace(config, train=train, run_directory=str(copy), **changes)
    (copy / "config.json").write_text(to_json(config), encoding="utf-8")
    return copy


# --- Files of translations ----------------------------------------------------------------------


def test_f01_a_file_is_scored_against_several_references(
    capsys: pytest.CaptureFixture[str],
) -> None:
    references = [str(F01 / "ref.txt"), str(F01 / "ref2.txt")]
    ((result,), err) = results_of(
        [str(F01 / "hyp.txt"), *TARGET, "--references", *references], capsys
    )
    assert result["BLEU"] == 78.75 and result["references"] == references
    assert result["sentences"] == 3 and len(result["fingerprint"]) == 64
    assert set(result["signatures"]) == {"BLEU", "paper_BLEU", "chrF", "TER"}
    assert all("nrefs:2" in signature for signature in result["signatures"].values())
    for name, signature in result["signatures"].items():
        assert f"{name}  {signature}\n  {result[name]:>8.2f}  {F01}/hyp.txt\n" in err


def test_files_are_compared_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    references = [f"the {i} dogs ran over a green hill in {1900 + i} ." for i in range(40)]
    better = [line.replace("dogs", "cats") if i < 4 else line for i, line in enumerate(references)]
    worse = [line.replace("a green hill", "hills") for line in references]
    paths = []
    for name, lines in (("worse", worse), ("better", better), ("ref", references)):
        paths.append(str(tmp_path / f"{name}.en"))
        write_lines(Path(paths[-1]), lines)
    options = [*TARGET, "--references", paths[2], "--metrics", "BLEU", "chrF"]
    for method, trials in (("bootstrap", "bs:1000"), ("approximate-randomization", "ar:10000")):
        results, err = results_of([*paths[:2], *options, "--paired", method], capsys)
        assert [result["system"] for result in results] == paths[:2]
        for result, lines in zip(results, (worse, better), strict=True):
            assert result["BLEU"] == round(sacrebleu.corpus_bleu(lines, [references]).score, 2)
            assert result["paired"]["test"] == method and result["paired"]["baseline"] == paths[0]
            assert "paper_BLEU" not in result and "TER" not in result["paired"]
        first, second = (result["paired"]["BLEU"] for result in results)
        assert trials in second["signature"] and "tok:13a" in second["signature"]
        assert first["p_value"] is None and second["p_value"] < 0.01
        assert (second["interval"] is None) == (method != "bootstrap")
        assert f"{paths[1]}    p = {second['p_value']:.4f}\n" in err


def test_tokenised_files_are_made_raw_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F07: told where not."""
    folder = DATA / "F07_escapes"
    arguments = [str(folder / "ref_tok.txt"), *TARGET, "--references", str(folder / "hyp.txt")]
    ((raw,), err) = results_of([*arguments, "--detokenize"], capsys)
    assert (raw["BLEU"], raw["paper_BLEU"], raw["detokenized"]) == (100, 100, True)
    assert "WARNING" not in err
    ((result,), err) = results_of(arguments, capsys)
    assert result["BLEU"] < 50 and not result["detokenized"]
    assert "WARNING" in err and "look tokenised or escaped" in err


def test_comet_is_asked_for_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hypotheses, reference = str(F01 / "hyp.txt"), str(F01 / "ref.txt")
    one = [hypotheses, *TARGET, "--references", reference]
    asked = ["--metrics", "COMET", "BLEU"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pipx install unbabel-comet" in fails([*one, *asked], capsys)
    monkeypatch.setattr("transformer_jax.comet.find_program", lambda: "comet-score")
    monkeypatch.setattr("transformer_jax.comet.comet", lambda *texts: len(texts[0]) / 8)
    assert "COMET needs the sources and one reference" in fails([*one, *asked], capsys)
    sources = ["--sources", str(F01 / "ref2.txt")]
    two = [str(F01 / "ref2.txt"), *one, *sources, *asked, "--paired", "bootstrap"]
    assert "COMET has no paired test" in fails(two, capsys)
    ((result,), err) = results_of([*one, *sources, *asked], capsys)
    assert f"\n    0.3750  {hypotheses}\n" in err  # as many digits whatever the score
    assert result["COMET"] == 0.375 and "wmt22-comet-da" in result["signatures"]["COMET"]
    assert list(result["signatures"]) == ["BLEU", "COMET"]


MISTAKES = [
    ([], "give --target-language"),
    (TARGET, "need --references, or --test-set"),
    ([*TARGET, "--references", "REF", "--test-set", "sacrebleu:wmt14"], "not both"),
    ([*TARGET, "--sources", "REF"], "both --sources and --references"),
    ([*TARGET, "--test-set", "wmt14"], "it must be sacrebleu:NAME"),
    ([*TARGET, "--test-set", "sacrebleu:wmt14/full"], "give --source-language"),
    ([*TARGET, "--references", "REF", "--paired", "bootstrap"], "two runs or files"),
    ([*TARGET, "--references", "SHORT"], "hyp.txt has 3 lines but SHORT has 2"),
    (["--target-language", "zh", "--references", "REF", "--metrics", "paper_BLEU"], "paper_BLEU"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_mistakes_with_files_are_told(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"REF": str(F01 / "ref.txt"), "SHORT": str(DATA / "F02_counts/hyp_short.txt")}
    arguments = [paths.get(option, option) for option in options]
    message = fails([str(F01 / "hyp.txt"), *arguments], capsys)
    for name, path in paths.items():
        words = words.replace(name, path)
    assert words in message


def test_a_file_given_twice_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    twice = [str(F01 / "hyp.txt")] * 2
    assert "given twice" in fails([*twice, *TARGET], capsys)


# --- Runs ---------------------------------------------------------------------------------------


def test_checkpoints_and_files_are_compared_and_runs_keep_their_results(
    run: Path,
    tmp_path: Path,
    says: Callable,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = with_seed(run, tmp_path, 1)
    says({"seed1": ["ein Satz"] * 29})
    file = tmp_path / "file.de"
    shutil.copy(DATA / "base/test.de", file)
    systems = [f"{copy}@2", str(file), str(copy)]
    results, _ = results_of([*systems, "--paired", "bootstrap"], capsys)
    assert [result["system"] for result in results] == systems
    assert [result.get("checkpoint") for result in results] == ["step 2", None, "step 4"]
    assert len({result["fingerprint"] for result in results}) == 1
    assert results[1]["BLEU"] == 100 and results[1]["paired"]["chrF"]["p_value"] < 0.01
    assert results[0]["hypotheses"] != results[2]["hypotheses"]
    kept = (copy / "evaluations.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in kept] == [results[0], results[2]]
    assert not (tmp_path / "evaluations.jsonl").exists()


def test_runs_that_differ_in_their_seed_have_a_mean_and_a_deviation(
    run: Path,
    tmp_path: Path,
    says: Callable,
    capsys: pytest.CaptureFixture[str],
) -> None:
    references = list(read_lines(DATA / "base/test.de"))
    texts = {f"seed{seed}": ["falsch"] * seed + references[seed:] for seed in (3, 5, 10)}
    runs = [str(with_seed(run, tmp_path, seed)) for seed in (3, 5, 10)]
    says(texts)
    *results, spread = results_of(runs, capsys)[0]
    assert [result["system"] for result in results] == runs
    scores = [sacrebleu.corpus_bleu(lines, [references]).score for lines in texts.values()]
    assert [result["BLEU"] for result in results] == [round(score, 2) for score in scores]
    mean = sum(scores) / 3
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / 2)
    assert spread["BLEU"] == {"mean": pytest.approx(mean), "sd": pytest.approx(deviation)}
    assert spread["seeds"] == dict(zip(runs, (3, 5, 10), strict=True))
    assert spread["test_set"] == "test" and "tok:13a" in spread["signatures"]["BLEU"]

    # Neither checkpoints of one run nor runs of two experiments are seeds of one.
    assert len(results_of([f"{runs[0]}@2", f"{runs[0]}@4"], capsys)[0]) == 2
    model = dataclasses.replace(RunDirectory(runs[0]).load_config().model, dropout_rate=0.3)
    texts["seed7"] = references
    other = with_seed(run, tmp_path, 7, model=model)
    assert len(results_of([runs[0], str(other)], capsys)[0]) == 2


def test_f06_references_are_the_lines_of_the_file_whatever_the_model_knows(
    run: Path,
    tmp_path: Path,
    says: Callable,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Letters outside the vocabulary, and a line longer than any that the model takes."""
    references = ["Das ist ein Ŵŷþ Wort.", "Ein Wort " * 300 + "mehr.", "▁ ⁇ <unk>"]
    hypotheses = ["Das ist ein ⁇ Wort.", "Ein Wort " * 200 + "mehr.", "▁ ⁇ <unk>"]
    for name, lines in (("news.en", ["a", "b", "c"]), ("news.de", references)):
        write_lines(tmp_path / name, lines)
    says({"run": hypotheses})
    files = ["--sources", str(tmp_path / "news.en"), "--references", str(tmp_path / "news.de")]
    ((result,), _) = results_of([str(run), *files], capsys)
    expected = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert 0 < expected < 90 and result["BLEU"] == round(expected, 2)


def test_the_language_of_a_run_may_be_said_better(
    run: Path, tmp_path: Path, says: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    """F09: text without spaces, of a run whose language is another, is told."""
    text = list(read_lines(DATA / "F09_zh/ref.txt"))
    says({"run": text})
    path = str(DATA / "F09_zh/ref.txt")
    arguments = [str(run), "--sources", path, "--references", path]
    ((result,), err) = results_of(arguments, capsys)
    assert result["BLEU"] == 0 and "written without spaces" in err
    ((result,), err) = results_of([*arguments, "--target-language", "zh"], capsys)
    assert result["BLEU"] == 100 and "WARNING" not in err


def test_runs_of_other_languages_and_missing_checkpoints_are_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = RunDirectory(str(run)).load_config().data
    other = with_seed(run, tmp_path, 1, data=dataclasses.replace(data, target_language="fr"))
    assert "different languages" in fails([str(run), str(other)], capsys)
    assert "no checkpoint 7; it has 2, 4" in fails([f"{run}@7"], capsys)
    assert "leave out the option" in fails([str(run), f"{run}@2", "--step", "4"], capsys)
    assert f"{run}x:7: not a run's directory" in fails([f"{run}x:7"], capsys)
    reference = ["--references", str(F01 / "ref.txt")]
    assert "both --sources and --references" in fails([str(run), *reference], capsys)
