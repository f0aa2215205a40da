"""What a build is asked to do."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardtools.corpus.tally import OnBadRow
from streampipe.errors import ConfigError
from streampipe.shards import FORMAT_VERSION, FRAME_TOKENS, Compression

BUILD_VERSION = 1
"""Raised when the same input and options would give other bytes."""


@dataclass(frozen=True)
class BuildOptions:
    """The options that decide the bytes of a source; each is in the manifest.

    Attributes:
        name: what to call the source; "" for none.
        split: the split to build.
        text_field: where the text is in a JSON or Parquet row.
        include: patterns for files in folders and globs.
        frame_tokens: a frame is closed once it holds so many tokens.
        shard_tokens: about how many tokens a shard holds.
        seed: of the order of documents inside a shard.
        eos: the token that ends each document, "" for none, None for the tokenizer's own.
        bos: the token that begins each document, "" for none.
        compression: how frames are stored.
        level: of the compression.
        on_bad_row: stop at a row that cannot be read, or count it.
    """

    name: str = ""
    split: str = "train"
    text_field: str = "text"
    include: tuple[str, ...] = ()
    frame_tokens: int = FRAME_TOKENS
    shard_tokens: int = 1 << 26
    seed: int = 0
    eos: str | None = None
    bos: str = ""
    compression: Compression = "zstd"
    level: int = 3
    on_bad_row: OnBadRow = "error"

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: naming the option.
        """
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", self.split):
            raise ConfigError(f"--split {self.split!r}: expected letters, digits, '_' and '-', as it names files")
        if not self.text_field:
            raise ConfigError("--text-field is empty; give the name of the field that holds the text")
        for option, value in (("--frame-tokens", self.frame_tokens), ("--shard-tokens", self.shard_tokens)):
            if value < 1:
                raise ConfigError(f"{option} must be at least 1, but got {value}")
        if self.frame_tokens > self.shard_tokens:
            raise ConfigError(
                f"--frame-tokens {self.frame_tokens} is more than --shard-tokens {self.shard_tokens}; "
                f"a shard holds at least one frame: lower the first"
            )
        if not 1 <= self.level <= 22:
            raise ConfigError(f"--level must be within 1 and 22, but got {self.level}")

    def recorded(self, eos: str, bos: str) -> dict[str, str | int | bool | None]:
        """Return what the manifest says of the build: plain values, with the tokens that were really used."""
        values = asdict(self)
        return {
            **values,
            "include": json.dumps(list(self.include)),
            "eos": eos or None,
            "bos": bos or None,
        }


@dataclass(frozen=True)
class BuildRequest:
    """A whole build: the options that decide the bytes, and what does not.

    Attributes:
        inputs: paths, globs, URLs.
        tokenizer: path or URL of a tokenizer.json.
        output: the folder to write.
        options: see `BuildOptions`.
        workers: processes.
        overwrite: whether another build in the folder may be removed.
        storage: options of the filesystems of URLs.
    """

    inputs: tuple[str, ...]
    tokenizer: str
    output: str
    options: BuildOptions = field(default_factory=BuildOptions)
    workers: int = 1
    overwrite: bool = False
    storage: Mapping[str, Any] = field(default_factory=dict)


def without_rule(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded options but for the rule for bad rows, which decides whether a shard is made, not how."""
    return {key: value for key, value in recorded.items() if key != "on_bad_row"}


def fingerprint(*parts: Any) -> str:
    """Return the hash of everything that decides the bytes of a build: 64 hex digits."""
    content = json.dumps([BUILD_VERSION, FORMAT_VERSION, *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
