"""What a build is asked to do."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shardtools.chat_options import ChatOptions
from shardtools.corpus.tally import OnBadRow
from shardtools.held_out import HeldOutRule
from shardtools.overlong import Overlong
from shardtools.share import Share
from shardtools.shuffle.order import Shuffle
from shardtools.text.normalize import Normalizer
from streampipe.errors import ConfigError
from streampipe.shards import FORMAT_VERSION, FRAME_TOKENS, Compression

EngineName = Literal["local", "ray"]
Dedup = Literal["none", "exact"]
VALIDATION = "validation"
"""The split that held-out documents go to."""

BUILD_VERSION = 2
"""Raised when the same input and options would give other bytes."""


@dataclass(frozen=True)
class BuildOptions:
    """The options that decide the bytes of a source; each is in the manifest.

    Attributes:
        name: what to call the source; "" for none.
        split: the split to build.
        schema: how rows are read; "" for the one that fits the columns of the first rows.
        text_field: where the text is in a row; if it is given, rows are texts.
        include: patterns for files in folders and globs.
        frame_tokens: a frame is closed once it holds so many tokens.
        shard_tokens: about how many tokens a shard holds.
        seed: of the order of documents.
        shuffle: over the whole corpus, inside a shard, or not at all.
        validation: the share (`1%`) or count of documents to move to the split `validation`, "" for none.
        validation_min: hold out at least so many.
        overlong: the rule for long documents: `keep`, `truncate:N` or `drop:N`.
        normalize: steps that change texts before they are encoded, in order.
        dedup: `exact` keeps the first of rows with the same text.
        eos: the token that ends each document, "" for none, None for the tokenizer's own.
        bos: the token that begins each document, "" for none.
        compression: how frames are stored.
        level: of the compression.
        add_special_tokens: to the tokenizer, which is saved with them.
        fragments_at: the token that separates the parts of a text, such as the files of a repository; it is encoded as
            one token, and its places are recorded; "" for none.
        chat: for conversations and pairs.
        on_bad_row: stop at a row that cannot be read, or count it.
        max_bad_rows: the share or count of bad rows above which a build that counts them fails, "" for no limit.
    """

    name: str = ""
    split: str = "train"
    schema: str = ""
    text_field: str | None = None
    include: tuple[str, ...] = ()
    frame_tokens: int = FRAME_TOKENS
    shard_tokens: int = 1 << 26
    seed: int = 0
    shuffle: Shuffle = "global"
    validation: str = ""
    validation_min: int = 1
    overlong: str = "keep"
    normalize: tuple[str, ...] = ()
    dedup: Dedup = "none"
    eos: str | None = None
    bos: str = ""
    compression: Compression = "zstd"
    level: int = 3
    add_special_tokens: tuple[str, ...] = ()
    fragments_at: str = ""
    chat: ChatOptions = field(default_factory=ChatOptions)
    on_bad_row: OnBadRow = "error"
    max_bad_rows: str = ""

    @property
    def held_out_rule(self) -> HeldOutRule | None:
        """What to hold out, if anything."""
        return HeldOutRule.parse(self.validation, self.validation_min, distinct=self.dedup == "exact")

    @property
    def bad_rows_cap(self) -> Share | None:
        """How many bad rows are too many, if any number is."""
        return Share.parse(self.max_bad_rows, "--max-bad-rows") if self.max_bad_rows else None

    @property
    def in_stages(self) -> bool:
        """Whether a shard can only be written once the whole input has been read."""
        return self.shuffle == "global" or bool(self.validation) or self.dedup != "none"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the build makes."""
        return (self.split, VALIDATION) if self.validation else (self.split,)

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: naming the option.
        """
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", self.split):
            raise ConfigError(f"--split {self.split!r}: expected letters, digits, '_' and '-', as it names files")
        if self.text_field == "":
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
        if self.validation and self.split == VALIDATION:
            raise ConfigError(f"--validation moves documents to the split {VALIDATION!r}; give --split another name")
        if self.max_bad_rows and self.on_bad_row == "error":
            raise ConfigError("--max-bad-rows has no meaning with --on-bad-row error; use --on-bad-row count")
        if "" in self.add_special_tokens:
            raise ConfigError("--add-special-tokens: a token is empty; separate tokens by one comma")
        Overlong.parse(self.overlong)
        Normalizer.parse(self.normalize)
        _ = self.held_out_rule, self.bad_rows_cap

    def recorded(self, eos: str, bos: str) -> dict[str, str | int | bool | None]:
        """Return what the manifest says of the build: plain values, with the tokens that were really used.

        What only conversations and pairs have is recorded by `ChatOptions`.
        """
        values = {key: value for key, value in asdict(self).items() if key != "chat"}
        if not self.fragments_at:  # so a build without has the identity that it had before there was the option
            del values["fragments_at"]
        return {
            **values,
            "build_version": BUILD_VERSION,
            "include": json.dumps(list(self.include)),
            "add_special_tokens": json.dumps(list(self.add_special_tokens)),
            "normalize": ",".join(self.normalize),
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
        engine: where tasks run.
        ray_address: of the Ray cluster; "" to start one on this machine.
        scratch: the folder for documents that wait for their place; "" chooses one.
        give_up_after: seconds to go on trying when the object store of output or scratch fails.
    """

    inputs: tuple[str, ...]
    tokenizer: str
    output: str
    options: BuildOptions = field(default_factory=BuildOptions)
    workers: int = 1
    overwrite: bool = False
    storage: Mapping[str, Any] = field(default_factory=dict)
    engine: EngineName = "local"
    ray_address: str = ""
    scratch: str = ""
    give_up_after: float = 60.0


def without_rule(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded options but for the rules for bad rows, which decide whether a shard is made, not how."""
    return {key: value for key, value in recorded.items() if key not in ("on_bad_row", "max_bad_rows")}


def fingerprint(*parts: Any) -> str:
    """Return the hash of everything that decides the bytes of a build: 64 hex digits."""
    content = json.dumps([BUILD_VERSION, FORMAT_VERSION, *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
