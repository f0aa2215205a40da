"""A source without data: lognormal lengths through the same plan and the same assembly, without I/O.

Every mock shard holds the same number of tokens, so positions stay closed-form and ten billion documents take no
memory.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from threading import Lock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampipe.mock_config import SHARD_TOKENS, MockConfig
from streampipe.rng import raw_words
from streampipe.shards.buffers import FrameBuffers
from streampipe.shards.index import FrameIndex, Ragged
from streampipe.shards.manifest import TokenizerInfo
from streampipe.shards.source import Source

_FRAME_TOKENS = 65_536
_SHARDS_KEPT = 8


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
        shards = -(-total // SHARD_TOKENS)
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
    def built(self) -> dict[str, int | None]:
        """What a build would have recorded."""
        return {"fragments_at": self.config.fragments_at}

    @cached_property
    def content_hash(self) -> str:
        """What the source holds, as a hash of what makes it, wherever files of that lie."""
        config = msgspec.json.encode(msgspec.structs.replace(self.config, lengths=None, tokens_from=None)).decode()
        lengths = hashlib.sha256(self._quantiles.astype("<i8").tobytes()).hexdigest()
        borrowed = self._real.content_hash if self._real else ""
        return f"{int(raw_words(1, 'mock content', self.seed, config, lengths, borrowed)[0]):016x}"

    def content_of(self, shards: int) -> str:
        """Return the `content_hash`: a mock does not grow, it becomes another."""
        return self.content_hash

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

    def mean_document(self, shards: int | None = None) -> Fraction:
        """Return the mean of the lengths that are drawn, in tokens, whatever the shards."""
        return Fraction(int(self._quantiles.sum()), len(self._quantiles))

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
        index = _framed(lengths, ends[: last + 1], self.token_dtype.itemsize)
        if self.config.fragments_at is None:
            return index
        return replace(index, fragments=self._separators(shard, ends[: last + 1]))

    def _separators(self, shard: int, ends: NDArray[np.int64]) -> Ragged:
        """Draw which tokens of a shard's documents are separators: gaps are uniform, at least 1."""
        most = 2 * self.config.fragment_mean - 1
        enough = int(self._tokens_of_a_shard / self.config.fragment_mean * 1.1) + 64
        words = raw_words(enough, self.seed, "mock fragments", self.name, shard)
        places = np.cumsum((words >> np.uint64(32)) * np.uint64(most) >> np.uint64(32), dtype=np.int64)
        places += np.arange(len(places))
        places = places[places < ends[-1]]
        document = np.searchsorted(ends, places, "right")
        starts = np.concatenate([[0], ends[:-1]])
        return Ragged(np.searchsorted(document, np.arange(len(ends) + 1)), (places - starts[document]).astype(np.int32))

    def _slice_of_pool(self, shard: int, frame: int) -> NDArray[Any]:
        """Every frame shows another stretch of the same made-up tokens: no frame costs anything without separators."""
        index = self.index(shard)
        tokens = int(index.tokens[frame])
        start = (shard * 7919 + frame * 104_729) % (len(self._pool) - tokens + 1)
        shown = self._pool[start : start + tokens]
        if index.fragments is None:
            return shown
        begin, end = index.first_document[frame : frame + 2].tolist()
        offsets = index.fragments.offsets[begin : end + 1]
        documents = index.payload_offsets[begin:end] // self.token_dtype.itemsize
        shown = shown.copy()
        places = documents.repeat(np.diff(offsets)) + index.fragments.values[offsets[0] : offsets[-1]]
        shown[places] = self.config.fragments_at
        return shown

    def _made_up(self) -> NDArray[Any]:
        words = raw_words(
            2 * max(_FRAME_TOKENS, self.longest_document()) + _FRAME_TOKENS, self.seed, "mock tokens", self.name
        )
        separator, size = self.config.fragments_at, self.config.vocab_size
        made = (words >> np.uint64(32)) * np.uint64(size - (separator is not None)) >> np.uint64(32)
        if separator is not None:
            made += made >= separator  # none by chance
        return made.astype(self.token_dtype)

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
