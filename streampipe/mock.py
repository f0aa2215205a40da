"""A source without data: lognormal lengths through the same plan and the same assembly, without I/O.

Every mock shard holds the same number of tokens, so positions stay closed-form and ten billion documents take no
memory.
"""

import statistics
from collections import OrderedDict
from collections.abc import Sequence
from math import exp, inf, log
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampipe.errors import ConfigError
from streampipe.rng import raw_words
from streampipe.shards.buffers import FrameBuffers
from streampipe.shards.index import FrameIndex
from streampipe.shards.manifest import TokenizerInfo
from streampipe.shards.source import Source

_SHARD_TOKENS = 2**26
_FRAME_TOKENS = 65_536
_QUANTILES = 2**14
_SHARDS_KEPT = 8


class MockConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lengths to draw, with Megatron's meaning.

    `x ~ exp(N(ln(mean) - sigma²/2, sigma²))`, clipped to `[min, max]` and truncated to an integer; so `mean` is the
    mean before clipping.

    Attributes:
        documents: about how many; exact is the number of tokens.
        mean, sigma, min, max: of the distribution; lengths in tokens.
        lengths: a text file with one length a line (all lines count, there is no header), drawn from instead of a
            distribution.
        tokens_from: folder of a real source whose documents are cut to mock lengths; else tokens are made up.
        vocab_size: ids are below it.
    """

    documents: int = 1_000_000
    mean: float = 1000.0
    sigma: float = 1.2
    min: int = 1
    max: int = 65_536
    lengths: str | None = None
    tokens_from: str | None = None
    vocab_size: int = 32_000

    def check(self, where: str) -> None:
        """Raise ConfigError for numbers that give no lengths."""
        if self.documents < 1:
            raise ConfigError(f"{where}.documents: must be at least 1, but got {self.documents}")
        if not 1 <= self.min <= self.max <= _SHARD_TOKENS:
            raise ConfigError(
                f"{where}: need 1 <= min <= max <= {_SHARD_TOKENS}, but got min {self.min}, max {self.max}"
            )
        if not (0 < self.mean < inf and 0 <= self.sigma < inf):
            raise ConfigError(f"{where}: need mean > 0 and sigma >= 0, but got mean {self.mean}, sigma {self.sigma}")
        if not 1 <= self.vocab_size <= 2**31:
            raise ConfigError(f"{where}.vocab_size: must be within 1 and 2^31, but got {self.vocab_size}")

    def quantiles(self) -> NDArray[np.int64]:
        """Return the lengths to draw from, each as likely as another: int64 [quantiles].

        Raises:
            ConfigError: when the file of lengths cannot be read.
        """
        if self.lengths is not None:
            return _lengths_in(self.lengths)
        normal = statistics.NormalDist(log(self.mean) - self.sigma**2 / 2, self.sigma) if self.sigma else None
        drawn = [exp(normal.inv_cdf((i + 0.5) / _QUANTILES)) if normal else self.mean for i in range(_QUANTILES)]
        lengths: NDArray[np.int64] = np.clip(np.array(drawn), self.min, self.max).astype(np.int64)
        return lengths


def _lengths_in(path: str) -> NDArray[np.int64]:
    try:
        lengths = np.array([int(line) for line in Path(path).read_text().split()], np.int64)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: a file of mock lengths has one positive integer a line, but: {error}") from error
    if not len(lengths) or lengths.min() < 1 or lengths.max() > _SHARD_TOKENS:
        raise ConfigError(
            f"{path}: mock lengths must be within 1 and {_SHARD_TOKENS}, and there must be one; got {len(lengths)} "
            "numbers"
        )
    return lengths


class MockSource:
    """A source whose lengths are drawn and whose tokens are made up (or borrowed from a real source).

    It answers the same questions as `streampipe.shards.source.Source`. The last document of a shard is cut so that all
    shards hold equally many tokens.
    """

    def __init__(self, name: str, config: MockConfig, seed: int) -> None:
        self.name = name
        self.url = f"mock:{name}"
        self.config = config
        self.seed = seed
        self._quantiles = config.quantiles()
        total = max(1, round(config.documents * float(self._quantiles.mean())))
        shards = -(-total // _SHARD_TOKENS)
        self._tokens_of_a_shard = -(-total // shards)
        self._real = Source.open(name, config.tokens_from) if config.tokens_from else None
        self.shard_tokens: NDArray[np.int64] = np.full(shards, self._tokens_of_a_shard, np.int64)
        self.token_dtype: np.dtype[Any] = (
            self._real.token_dtype if self._real else np.dtype(np.uint16 if config.vocab_size <= 2**16 else np.uint32)
        )
        self._pool = np.empty(0, self.token_dtype) if self._real else self._made_up()
        self._indexes: OrderedDict[int, FrameIndex] = OrderedDict()
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def is_local(self) -> bool:
        """Made-up tokens are; borrowed ones are where their source is."""
        return self._real is None or self._real.is_local

    @property
    def kind(self) -> str:
        """Mock documents are text."""
        return "text"

    @property
    def members(self) -> int:
        """Token members of a document."""
        return 1

    @property
    def content_hash(self) -> str:
        """What the source holds, as a hash of what makes it."""
        return self.content_of(len(self.shard_tokens))

    def content_of(self, shards: int) -> str:
        """Return a hash of what makes the source."""
        words = raw_words(
            1,
            "mock content",
            self.seed,
            msgspec.json.encode(self.config).decode(),
            *self._quantiles[:: len(self._quantiles) // 64 + 1].tolist(),
        )
        return f"{int(words[0]):016x}"

    @property
    def tokenizer(self) -> TokenizerInfo:
        """The real source's tokenizer, or one that stands for `vocab_size` ids."""
        if self._real:
            return self._real.tokenizer
        size = self.config.vocab_size
        return TokenizerInfo(
            f"mock-{size}", f"mock-{size}", size, size - 1, eos_id=0, bos_id=None, pad_id=None, special_tokens={}
        )

    @property
    def shard_documents(self) -> NDArray[np.int64]:
        """How many documents a shard holds at most.

        Int64 [shards]; drawing them all would take as long as reading them.
        """
        return np.full(len(self.shard_tokens), self._tokens_of_a_shard // int(self._quantiles.min()) + 1, np.int64)

    def longest_document(self) -> int:
        """Return the longest length that can be drawn, in tokens."""
        return int(self._quantiles.max())

    def index(self, shard: int) -> FrameIndex:
        """Draw the lengths of a shard; the last eight are kept."""
        with self._lock:
            if shard not in self._indexes:
                self._indexes[shard] = self._draw(shard)
                while len(self._indexes) > _SHARDS_KEPT:
                    self._indexes.popitem(last=False)
            self._indexes.move_to_end(shard)
            return self._indexes[shard]

    def fetch_frames(self, frames: Sequence[tuple[int, int]]) -> None:
        """Return None: nothing is stored."""

    def read_frames(self, frames: Sequence[tuple[int, int]], buffers: FrameBuffers | None = None) -> list[Any]:
        """Return the token bytes of frames, documents end to end; made-up tokens need no memory of their own."""
        if self._real:
            return [self._borrow(self._real, shard, frame) for shard, frame in frames]
        return [self._slice_of_pool(shard, frame) for shard, frame in frames]

    def _draw(self, shard: int) -> FrameIndex:
        goal = self._tokens_of_a_shard
        guess = int(goal / float(self._quantiles.mean()) * 1.1) + 64
        while True:
            words = raw_words(guess, self.seed, "mock lengths", self.name, shard)
            drawn = self._quantiles[
                ((words >> np.uint64(32)) * np.uint64(len(self._quantiles)) >> np.uint64(32)).astype(np.int64)
            ]
            ends = np.cumsum(drawn)
            if ends[-1] >= goal:
                break
            guess *= 2
        last = int(np.searchsorted(ends, goal))
        lengths = drawn[: last + 1].copy()
        lengths[last] -= ends[last] - goal
        ends[last] = goal
        return _framed(lengths, ends[: last + 1], self.token_dtype.itemsize)

    def _made_up(self) -> NDArray[Any]:
        words = raw_words(
            2 * max(_FRAME_TOKENS, self.longest_document()) + _FRAME_TOKENS, self.seed, "mock tokens", self.name
        )
        return ((words >> np.uint64(32)) * np.uint64(self.config.vocab_size) >> np.uint64(32)).astype(self.token_dtype)

    def _slice_of_pool(self, shard: int, frame: int) -> NDArray[Any]:
        """Every frame shows another stretch of the same made-up tokens: no frame costs anything."""
        tokens = int(self.index(shard).tokens[frame])
        start = (shard * 7919 + frame * 104_729) % (len(self._pool) - tokens + 1)
        return self._pool[start : start + tokens]

    def _borrow(self, real: Source, shard: int, frame: int) -> bytes:
        """Fill a mock frame from a real one.

        Each mock document begins with a real one and goes on into those after it.
        """
        index = self.index(shard)
        real_shard = shard % len(real.shard_tokens)
        real_index = real.index(real_shard)
        real_frame = frame % len(real_index.tokens)
        raw = real.read_frames([(real_shard, real_frame)])[0]
        rows = range(int(real_index.first_document[real_frame]), int(real_index.first_document[real_frame + 1]))
        parts = [
            np.frombuffer(raw, real.token_dtype, int(real_index.lengths[r]), int(real_index.payload_offsets[r]))
            for r in rows
        ]
        tape, starts = np.concatenate(parts), np.cumsum([0, *map(len, parts)])
        lengths = index.lengths[index.first_document[frame] : index.first_document[frame + 1]]
        documents = [
            np.take(tape, np.arange(n) + starts[i % len(parts)], mode="wrap") for i, n in enumerate(lengths.tolist())
        ]
        return np.concatenate(documents).tobytes()


def _framed(lengths: NDArray[np.int64], ends: NDArray[np.int64], itemsize: int) -> FrameIndex:
    """Cut a shard's documents into frames of about 65,536 tokens, as a build does."""
    first = [0]
    while first[-1] < len(lengths):
        base = int(ends[first[-1] - 1]) if first[-1] else 0
        first.append(min(len(lengths), int(np.searchsorted(ends, base + _FRAME_TOKENS)) + 1))
    first_document = np.array(first, np.int64)
    frame_ends = ends[first_document[1:] - 1]
    tokens = np.diff(frame_ends, prepend=0)
    starts = ends - lengths
    payload = (starts - np.repeat(frame_ends - tokens, np.diff(first_document))) * itemsize
    nothing = np.zeros(len(tokens), np.int64)
    return FrameIndex(
        offset=nothing,
        compressed_bytes=nothing,
        raw_bytes=tokens * itemsize,
        checksum=nothing.astype(np.uint64),
        documents=np.diff(first_document),
        tokens=tokens,
        first_document=first_document,
        lengths=lengths.astype(np.int32),
        payload_offsets=payload,
    )
