"""Small sources, made by the real writer."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from streampipe.shards import (
    AnyDocument,
    Document,
    EncodedShard,
    InputEntry,
    Manifest,
    Pair,
    Source,
    TokenizerInfo,
    Trained,
    encode_shard,
    length_histogram,
    write_manifest,
)
from streampipe.shards.manifest import MEMBERS_OF_KIND, Kind
from streampipe.storage import open_store

TOKENIZER = TokenizerInfo("a" * 64, "b" * 64, 50_000, 49_999, 0, None, None, {"<|endoftext|>": 0})

SourceWriter = Callable[..., Source]


def make_documents(count: int, seed: int = 0, longest: int = 200) -> list[Document]:
    generator = np.random.Generator(np.random.Philox(seed))
    lengths = generator.integers(1, longest + 1, count)
    return [
        Document(f"{i:06d}", generator.integers(0, 50_000, length), origin_file=0, origin_row=i)
        for i, length in enumerate(lengths)
    ]


def make_conversations(count: int, seed: int = 1, longest: int = 120) -> list[Document]:
    """Conversations of some turns, of which every other is trained; every third has meta data."""
    generator = np.random.Generator(np.random.Philox(seed))
    return [
        Document(f"{i:06d}", *_turns(generator, longest), origin_file=0, origin_row=i, meta=_meta(i))
        for i in range(count)
    ]


def make_pairs(count: int, seed: int = 2, longest: int = 80) -> list[Pair]:
    generator = np.random.Generator(np.random.Philox(seed))
    return [
        Pair(
            f"{i:06d}",
            Trained(*_turns(generator, longest)),
            Trained(*_turns(generator, longest)),
            origin_file=0,
            origin_row=i,
            meta=_meta(i),
        )
        for i in range(count)
    ]


def _turns(generator: np.random.Generator, longest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    length = int(generator.integers(2, longest + 1))
    spans = int(generator.integers(1, 1 + length // 2 if length < 8 else 4))
    borders = np.sort(generator.choice(length + 1, 2 * spans, replace=False))
    return generator.integers(0, 50_000, length), borders.reshape(-1, 2)


def _meta(i: int) -> dict[str, object] | None:
    return {"id": f"row {i} \u00e4", "score": 0.5, "tags": ["a", None]} if i % 3 == 0 else None


def make_manifest(shards: Sequence[EncodedShard], compression: str, token_dtype: str, kind: Kind) -> Manifest:
    lengths = np.concatenate([shard.index.document_lengths for shard in shards])
    return Manifest(
        kind=kind,
        compression=compression,
        token_dtype=token_dtype,
        members=MEMBERS_OF_KIND[kind],
        tokenizer=TOKENIZER,
        splits={"train": [shard.entry for shard in shards]},
        histogram={"train": length_histogram(lengths)},
        counts={"documents": len(lengths)},
        inputs=[InputEntry("corpus.jsonl", 12, "c" * 64)],
        build={"seed": 1, "text_field": "text"},
    )


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    return make_documents(60)


@pytest.fixture(scope="session")
def conversations() -> list[Document]:
    return make_conversations(40)


@pytest.fixture(scope="session")
def pairs() -> list[Pair]:
    return make_pairs(30)


@pytest.fixture(scope="session")
def of_kind(
    documents: list[Document], conversations: list[Document], pairs: list[Pair]
) -> dict[str, Sequence[AnyDocument]]:
    return {"text": documents, "conversation": conversations, "preference": pairs}


@pytest.fixture(scope="session")
def write_source() -> SourceWriter:
    """Give a function that writes documents to a URL, dealt to shards in turn, and opens the source."""

    def write(
        url: str,
        documents: Sequence[AnyDocument],
        *,
        shards: int = 2,
        compression: str = "zstd",
        token_dtype: str = "uint16",
        frame_tokens: int = 1_000,
    ) -> Source:
        store = open_store(url)
        encoded = [
            encode_shard(
                documents[i::shards],
                f"train-{i:05d}",
                token_dtype=token_dtype,
                frame_tokens=frame_tokens,
                compression=compression,
            )
            for i in range(shards)
        ]
        for shard in encoded:
            store.write(shard.shard_name, shard.shard_bytes)
            store.write(shard.index_name, shard.index_bytes)
        write_manifest(store, make_manifest(encoded, compression, token_dtype, documents[0].kind))
        return Source.open("web", url)

    return write


@pytest.fixture(scope="session")
def read_tokens() -> Callable[[Source], list[list[NDArray[np.unsignedinteger]]]]:
    """Give a function that reads a source the fast way: for each shard the tokens of every member of every document."""

    def read(source: Source) -> list[list[NDArray[np.unsignedinteger]]]:
        found = []
        for shard in range(len(source.shards)):
            index = source.index(shard)
            frames = source.read_frames([(shard, f) for f in range(len(index.offset))])
            found.append(
                [
                    np.frombuffer(raw, source.token_dtype, index.lengths[i], index.payload_offsets[i])
                    for f, raw in enumerate(frames)
                    for i in range(*(index.first_document[f : f + 2] * index.members))
                ]
            )
        return found

    return read
