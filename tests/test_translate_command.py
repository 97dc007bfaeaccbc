"""`translate` beyond a line for a line: with a small model that was really trained."""

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import transformer_jax
from transformer_jax.__main__ import main
from transformer_jax.commands.shared import split_checkpoint
from transformer_jax.config import TokenizerConfig
from transformer_jax.data.text import atomic_writer
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.errors import UserError

pytestmark = pytest.mark.usefixtures("one_device")

RUN = Path(__file__).parent / "golden/run"
LINES = ["May 26, 2020", "874%", "", "Maltese (Pakistan)", "17:10 – 20:30"]
BEST = ["26. Mai 2020", "874 %", "", "Maltesisch (Pakistan)", "17:10–20:30 Uhr"]
Translate = Callable[..., list[str]]


@pytest.fixture
def translate(capsysbinary: pytest.CaptureFixture[bytes]) -> Translate:
    """The lines that `translate` writes for lines on standard input."""

    def run(*options: str, lines: list[str] = LINES, runs: tuple[str, ...] = (str(RUN),)):
        text = "".join(f"{line}\n" for line in lines).encode()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
            status = main(["translate", *runs, *options])
        out, err = capsysbinary.readouterr()
        assert status == 0, err.decode()
        assert not out or out.endswith(b"\n")
        return out.decode().split("\n")[:-1]

    return run


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["translate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_blocks_change_nothing(translate: Translate, tmp_path: Path) -> None:
    assert translate() == BEST
    assert translate("--decode.block-lines", "2") == BEST
    output = tmp_path / "out.de"
    assert translate("--decode.block-lines", "1", "--output", str(output)) == []
    assert output.read_text(encoding="utf-8").split("\n") == [*BEST, ""]


def test_a_list_of_the_best_begins_with_the_best_e04(translate: Translate) -> None:
    """E04, E19: asking for more changes no place, and no place holds the same tokens again."""
    three = [line.split("\t") for line in translate("--nbest", "3", "--scores")]
    assert [row[0] for row in three] == [*"111", *"222", "3", *"444", *"555"]  # a blank has one
    by_line = {number: [row[1:] for row in three if row[0] == number] for number in "12345"}
    assert [by_line[number][0][0] for number in "12345"] == BEST
    one = [line.split("\t") for line in translate("--scores")]
    for (text, score, log_prob), number in zip(one, "12345", strict=True):
        best, *others = by_line[number]
        assert best[0] == text
        assert float(best[1]) == pytest.approx(float(score), abs=1e-5)
        assert float(best[2]) == pytest.approx(float(log_prob), abs=1e-5)
        assert all(float(other[1]) <= float(best[1]) for other in others)
        assert len({other[0] for other in [best, *others]}) == len([best, *others])


def test_jsonl_tells_all(translate: Translate) -> None:
    entries = [json.loads(line) for line in translate("--format", "jsonl", "--nbest", "2")]
    assert [entry["line"] for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry["parts"] for entry in entries] == [1, 1, 0, 1, 1]
    assert [entry["hypotheses"][0]["text"] for entry in entries] == BEST
    hypothesis = entries[0]["hypotheses"][0]
    penalty = ((5 + hypothesis["tokens"]) / 6) ** 0.6
    assert hypothesis["score"] == pytest.approx(hypothesis["log_prob"] / penalty, abs=1e-5)
    assert hypothesis["finished"] is True


def test_alignments_say_where_words_come_from(translate: Translate) -> None:
    """The day and the month change places, the year does not."""
    rows = [line.split("\t") for line in translate("--alignments", "words")]
    assert [row[0] for row in rows] == BEST
    assert rows[0][1] == "1-0 0-1 2-2"
    assert rows[2][1] == ""
    assert rows[3][1] == "0-0 1-1"
    options = ["--format", "jsonl", "--alignments"]
    words, pieces, matrix = (
        [json.loads(line)["hypotheses"][0]["alignment"] for line in translate(*options, level)]
        for level in ("words", "pieces", "matrix")
    )
    assert words[0] == {
        "source": ["May", "26,", "2020"],
        "target": ["26.", "Mai", "2020"],
        "links": [[1, 0], [0, 1], [2, 2]],
    }
    for some, other in zip(pieces, matrix, strict=True):
        assert "".join(some["target"]) == "".join(other["target"])
        weights = np.array(other["weights"])
        assert [list(link) for link in some["links"]] == [
            [int(row.argmax()), number] for number, row in enumerate(weights)
        ]
    assert matrix[2] == {"source": [], "target": [], "weights": []}


def test_samples_depend_on_line_and_seed_alone(translate: Translate) -> None:
    options = ["--temperature", "1.3", "--top-k", "20", "--top-p", "0.95", "--nbest", "6"]
    samples = translate(*options, "--seed", "1")
    assert len(samples) == 6 * 4 + 1  # more than beams; a blank line has one
    assert len(set(samples)) > 6
    small = ["--decode.tokens-per-batch", "1", "--decode.block-lines", "2"]
    assert translate(*options, "--seed", "1", *small) == samples
    others = [LINES[0], "", *LINES[2:]]
    again = translate(*options, "--seed", "1", lines=others)
    assert again[:6] + again[7:] == samples[:6] + samples[12:]
    assert translate(*options, "--seed", "2") != samples


def test_prefixes_are_what_translations_begin_with(translate: Translate, tmp_path: Path) -> None:
    prefixes = tmp_path / "prefixes.de"
    prefixes.write_text("Am 26.\n\nnicht hier\nMaltesisch  \n17\n", encoding="utf-8")
    rows = translate("--prefix-file", str(prefixes), "--scores")
    texts, scores = zip(*(row.split("\t")[:2] for row in rows), strict=True)
    assert texts[0].startswith("Am 26. ")
    assert texts[1:] == tuple(BEST[1:])
    free = [float(row.split("\t")[1]) for row in translate("--scores")]
    # What the model would say anyway costs nothing, what it would not say does.
    assert float(scores[0]) < free[0] - 0.5
    np.testing.assert_allclose([float(score) for score in scores[1:]], free[1:], atol=1e-5)


def test_prefixes_of_another_number_of_lines_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, prefixes = tmp_path / "in.en", tmp_path / "prefixes.de"
    source.write_text("a\nb\n", encoding="utf-8")
    prefixes.write_text("a\n", encoding="utf-8")
    message = fails(capsys, str(RUN), "--input", str(source), "--prefix-file", str(prefixes))
    assert f"{source} has 2 lines but {prefixes} has 1" in message
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n"), encoding="utf-8"))
        message = fails(capsys, str(RUN), "--prefix-file", str(prefixes))
    assert f"{prefixes} ends before standard input does" in message


def test_an_ensemble_of_one_model_twice_is_that_model(translate: Translate) -> None:
    alone = [line.split("\t") for line in translate("--scores")]
    runs = (str(RUN), f"{RUN}@2000")
    twice = [line.split("\t") for line in translate("--scores", runs=runs)]
    assert [row[0] for row in twice] == [row[0] for row in alone] == BEST
    np.testing.assert_allclose(
        [float(row[1]) for row in twice], [float(row[1]) for row in alone], atol=1e-4
    )
    assert translate(lines=LINES[:1], runs=(f"{RUN}@newest",)) == BEST[:1]


def test_models_with_unlike_tokenizers_are_no_ensemble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(RUN, other)
    with atomic_writer(other / "tokenizer.model") as file:
        # Of as many pieces, so that the shapes of the weights would fit.
        corpus = [f"{a}{b}{c} {c}{b}" for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwx"]
        file.write(train_tokenizer(corpus, TokenizerConfig(vocab_size=700)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n"), encoding="utf-8"))
    message = fails(capsys, str(RUN), str(other))
    assert f"{other}: not the same tokenizer as {RUN}: " in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nbest", "5"], "--nbest is 5: it must be at most decode.beam_size, which is 4"),
        (["--nbest", "0"], "--nbest is 0"),
        (["--temperature", "-1"], "sampling.temperature is -1.0"),
        (["--top-k", "5"], "sampling.temperature is 0.0: it must be above 0"),
        (["--alignments", "matrix"], "--alignments matrix needs --format jsonl"),
        (["--decode.block-lines", "0"], "decode.block_lines is 0"),
        (["--prefix-file", "-"], "standard input can be read once only"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert words in fails(capsys, str(RUN), *options)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{RUN}@mean:2", "no checkpoint 'mean:2'"),
        (f"{RUN}@7", "no checkpoint 7; it has 2000"),
        (f"{RUN}@best", "no checkpoint has been scored yet"),
    ],
)
def test_checkpoints_that_do_not_exist_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n"), encoding="utf-8"))
    assert words in fails(capsys, name)
    if name.endswith("@7"):
        assert "leave out the option" in fails(capsys, name, "--step", "7")


def test_an_at_may_be_part_of_a_path(tmp_path: Path) -> None:
    (tmp_path / "runs@home").mkdir()
    for run in (f"{tmp_path}/runs@home", f"{tmp_path}/runs@home/new", "runs/x", ""):
        assert split_checkpoint(run) == (run, "")
    assert split_checkpoint(f"{tmp_path}/runs@home@best") == (f"{tmp_path}/runs@home", "best")


def test_lines_come_out_while_others_still_come_in(
    start_cli: Callable[..., subprocess.Popen],
) -> None:
    """A block is written before the next is read; Ctrl-C then leaves whole lines."""
    process = start_cli("translate", str(RUN), "--decode.block-lines", "2")
    process.stdin.write("".join(f"{line}\n" for line in LINES[:3]).encode())
    process.stdin.flush()
    assert [process.stdout.readline().decode() for _ in range(2)] == [f"{t}\n" for t in BEST[:2]]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    assert out == b""
    assert err.decode() == "transformer-jax: interrupted\n"


def test_ctrl_c_in_the_middle_of_writing_waits_for_the_end_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformer_jax.commands.streams import write_blocks

    written = io.BytesIO()

    class Slow(io.BytesIO):
        def write(self, data: bytes) -> int:
            written.write(data[:3])
            signal.raise_signal(signal.SIGINT)
            return written.write(data[3:])

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Slow(), encoding="utf-8"))
    with pytest.raises(KeyboardInterrupt):
        write_blocks("-", iter([["first", "second"], ["third"]]))
    assert written.getvalue() == b"first\nsecond\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_same_from_python() -> None:
    """As the README shows it; A18: a line feed in a text is a space."""
    model = transformer_jax.load(str(RUN))
    assert model.translate(LINES) == BEST
    assert model.translate(["May 26,\n2020"]) == BEST[:1]
    assert "array" not in repr(model).lower()
    scores = model.score(LINES[:2], BEST[:2])
    assert "".join(scores[1].pieces) == "▁874▁%</s>"
    maps = model.attention(LINES[0], BEST[0])
    assert maps.cross.shape == (1, 2, len(maps.target_pieces), len(maps.source_pieces))
    with pytest.raises(TypeError, match="a list of sentences"):
        model.translate("a sentence")
    assert transformer_jax.load(str(RUN), checkpoint="average:1").checkpoint == "step 2000"
    assert transformer_jax.load(str(RUN), checkpoint=2000).checkpoint == "step 2000"
    both = transformer_jax.load(str(RUN), str(RUN))
    assert both.checkpoint == "step 2000 + step 2000"
    with pytest.raises(UserError, match="no checkpoint 'averages:2'"):
        transformer_jax.load(str(RUN), checkpoint="averages:2")
