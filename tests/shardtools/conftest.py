import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from chat_rows import CHATML, chats
from tokenizers import Tokenizer

from shardtools.cli import main
from streampipe.shards import Source

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A JSONL file of 400 documents of ordinary words, a few kilobytes each."""
    words = [
        "the",
        "loader",
        "reads",
        "frames",
        "of",
        "tokens",
        "from",
        "a",
        "bucket",
        "and",
        "packs",
        "every",
        "epoch",
    ]
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rng = np.random.Generator(np.random.Philox(7))
    with path.open("w") as file:
        for i in range(400):
            picked = rng.integers(0, len(words), int(rng.integers(5, 400)))
            file.write(json.dumps({"text": f"document {i}: " + " ".join(words[j] for j in picked)}) + "\n")
    return path


@pytest.fixture(scope="session")
def what(corpus, tmp_path_factory) -> dict[str, tuple[object, ...]]:
    """Arguments of a build of texts, and of one of conversations: at least a dozen shards of 3,000 tokens each."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in chats(800)))
    return {"texts": (corpus,), "chats": (path, *CHATML)}


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory, corpus) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    arguments = ["--vocab-size", "600", "--special-tokens", "<|fim_prefix|>,<|pad|>", "--output", str(path)]
    assert main(["train-tokenizer", str(corpus), *arguments]) == 0
    return path


@pytest.fixture
def build(tokenizer, tmp_path) -> Callable[..., Path]:
    """Builds inputs in this process and returns the folder; `code` is what the command must return."""

    def run(*arguments: object, output: Path | None = None, workers: int = 1, code: int = 0, tok=tokenizer) -> Path:
        output = output or tmp_path / "source"
        command = ["build", *map(str, arguments), "--tokenizer", str(tok), "--output", str(output)]
        assert main([*command, "--workers", str(workers)]) == code
        return output

    return run


@pytest.fixture
def texts(tokenizer) -> Callable[..., list[str]]:
    """Reads a source back with tarfile and numpy alone and returns its texts in the order of the input."""

    def read(folder: Path, *, special: bool = False, tok=tokenizer) -> list[str]:
        decoder = Tokenizer.from_file(str(tok))
        ids = documents_of(folder)
        return [decoder.decode(ids[key].tolist(), skip_special_tokens=not special) for key in sorted(ids)]

    return read


def documents_of(folder: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for shard in sorted(folder.glob("*.tar*")):
        data = shard.read_bytes()
        if shard.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                key, _, suffix = member.name.partition(".")
                assert suffix == "tokens.npy"
                assert key not in found
                found[key] = np.load(io.BytesIO(tar.extractfile(member).read()), allow_pickle=False)
    return found


@pytest.fixture
def documents() -> Callable[[Path], dict[str, np.ndarray]]:
    return documents_of


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Returns every file of a folder by its relative name."""

    def read(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return read


@pytest.fixture
def jsonl(tmp_path) -> Callable[..., Path]:
    def write(data: bytes | list[object], name: str = "in.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(data, bytes):
            data = b"".join(json.dumps(row).encode() + b"\n" for row in data)
        path.write_bytes(data)
        return path

    return write


@pytest.fixture
def made(build, jsonl) -> Callable[..., Source]:
    """Builds rows of chats with ChatML and opens the source."""

    def make(rows, *arguments, name="rows.jsonl", output=None, workers=1) -> Source:
        folder = build(jsonl(rows, name), *CHATML, *arguments, output=output, workers=workers)
        return Source.open("chat", str(folder))

    return make


@pytest.fixture
def shell() -> Callable[..., subprocess.Popen]:
    """Starts `python -m shardtools` as a user would, in its own session."""

    def start(*arguments: object, **environment: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "shardtools", *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start
