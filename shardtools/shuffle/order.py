"""Which place a document has in a split: a key of 64 bits. Buckets are ranges of keys.

The keys are hashes that other languages and releases compute alike (blake2b, xxh3), so an order outlives numpy and
Python; no generator is involved.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

Shuffle = Literal["global", "shard", "none"]

SLICE_BITS = 40
"""Without a global shuffle a bucket is a slice: its number stands above so many bits of the key."""


@dataclass(frozen=True)
class Order:
    """The order of a build's documents.

    Attributes:
        shuffle: over the whole corpus, inside each slice of the input, or not at all.
        seed: of the shuffle.
        buckets: how many there are; a bucket becomes a shard.
    """

    shuffle: Shuffle
    seed: int
    buckets: int

    def key(self, row: "RowPlace", part: int, position: int) -> int:
        """Return the place of a document.

        Args:
            row: the row it was made of.
            part: which of the row's documents it is.
            position: which of its slice's documents it is.
        """
        if self.shuffle == "none":
            return row.slice << SLICE_BITS | position
        where = row.identity + struct.pack("<qqi", row.file, row.row, part)
        drawn = xxhash.xxh3_64_intdigest(where, self._seed)
        return drawn if self.shuffle == "global" else row.slice << SLICE_BITS | drawn >> (64 - SLICE_BITS)

    def borders(self) -> NDArray[np.uint64]:
        """Return the first key of each bucket: uint64 [buckets]."""
        if self.shuffle == "global":
            firsts = [-(-(bucket << 64) // self.buckets) for bucket in range(self.buckets)]
        else:
            firsts = [bucket << SLICE_BITS for bucket in range(self.buckets)]
        return np.array(firsts, np.uint64)

    @cached_property
    def _seed(self) -> int:
        scope = json.dumps(["shuffle", self.seed]).encode()
        return int.from_bytes(hashlib.blake2b(scope, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class RowPlace:
    """What a row is and where it was.

    Attributes:
        identity: the hash of its content, 16 bytes; rows of the same content have the same.
        slice: of the input.
        file: its place among the inputs of the build.
        row: its number there.
    """

    identity: bytes
    slice: int
    file: int
    row: int


def identity_of(content: bytes) -> bytes:
    """Return the hash that tells rows apart by content: 16 bytes of blake2b."""
    return hashlib.blake2b(content, digest_size=16).digest()


def held_out_number(identity: bytes) -> int:
    """Return the number below 2^64 that decides whether a row is held out.

    It depends on the content alone, so copies of a text go the same way, and the same ones are held out of a corpus
    that has grown or is built with another seed or tokenizer.
    """
    return int.from_bytes(identity[:8], "little")
