"""Multi30k is fetched from a server of the test's own, whole or in parts."""

import gzip
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from corpora import find_corpus

from transformer_jax.config import DataConfig
from transformer_jax.data import download, multi30k
from transformer_jax.data.sources import read_split
from transformer_jax.errors import UserError

LINES = {"en": [f"a dog, number {i}" for i in range(5_000)], "de": ["ein Hund"] * 5_000}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `files`; knows ranges unless told otherwise, and may cut an answer short."""

    files: ClassVar[dict[str, bytes]]
    asked: ClassVar[list[str]]
    ranges = True
    cut_at: int | None = None

    def do_GET(self) -> None:
        content = self.files.get(self.path.rpartition("/")[2])
        wanted = self.headers.get("Range", "")
        self.asked.append(wanted)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted[len("bytes=") : -1]) if wanted and self.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.cut_at])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    texts = {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in LINES.items()}

    class Own(Handler):
        pass

    Own.files = {f"train.{name}.gz": gzip.compress(text) for name, text in texts.items()}
    Own.asked = []
    digests = {f"train.{name}": hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    monkeypatch.setattr(multi30k, "DIGESTS", digests)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own) as running:
        monkeypatch.setattr(multi30k, "ADDRESS", f"http://127.0.0.1:{running.server_port}/raw")
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield Own
        running.shutdown()


def read(folder: Path) -> list[tuple[str, str]]:
    return list(read_split(DataConfig(corpus="multi30k", directory=str(folder)), "train"))


EXPECTED = list(zip(LINES["en"], LINES["de"], strict=True))


def test_it_is_fetched_once(server: type[Handler], tmp_path: Path) -> None:
    assert read(tmp_path / "new") == EXPECTED
    assert read(tmp_path / "new") == EXPECTED
    assert server.asked == ["", ""]
    assert sorted(os.listdir(tmp_path / "new")) == ["train.de.gz", "train.en.gz"]


def test_files_that_are_there_are_read(server: type[Handler], tmp_path: Path) -> None:
    for name, lines in LINES.items():
        (tmp_path / f"train.{name}").write_text("".join(f"{x}\n" for x in lines[:3]), "utf-8")
    assert read(tmp_path) == EXPECTED[:3]
    assert server.asked == []


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_download_goes_on(server: type[Handler], tmp_path: Path, ranges: bool) -> None:
    """G05."""
    server.ranges, server.cut_at = ranges, 1_000
    with pytest.raises(UserError, match="the connection was cut; the next try goes on"):
        read(tmp_path)
    assert (tmp_path / "train.en.gz.part").stat().st_size == 1_000
    server.cut_at = None
    assert read(tmp_path) == EXPECTED
    assert server.asked == ["", "bytes=1000-", ""]


def test_a_download_that_was_complete_already(server: type[Handler], tmp_path: Path) -> None:
    (tmp_path / "train.en.gz.part").write_bytes(server.files["train.en.gz"])
    assert read(tmp_path) == EXPECTED


def test_another_file_is_refused_and_does_not_stay(server: type[Handler], tmp_path: Path) -> None:
    """A22, G05."""
    for wrong in (b"<html>sorry</html>", gzip.compress(b"a\n"), server.files["train.de.gz"][:-9]):
        server.files["train.en.gz"] = wrong
        with pytest.raises(UserError, match=r"train\.en\.gz: not the file that was expected; put"):
            read(tmp_path)
        assert os.listdir(tmp_path) == []


def test_no_server(server: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G05."""
    del server.files["train.en.gz"]
    with pytest.raises(UserError, match=r"train\.en\.gz: cannot be fetched \(Not Found\); put it"):
        read(tmp_path)
    monkeypatch.setattr(multi30k, "ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setattr(download, "_TIMEOUT_SECONDS", 5)
    with pytest.raises(UserError, match="cannot be fetched"):
        read(tmp_path)


def test_real_text_is_the_published_one() -> None:
    for name, digest in multi30k.DIGESTS.items():
        content = find_corpus(f"multi30k/{name}").read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
