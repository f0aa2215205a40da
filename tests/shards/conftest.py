"""Small sources, made by the real writer."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from streampipe.shards import (
    Document,
    EncodedShard,
    InputEntry,
    Manifest,
    Source,
    TokenizerInfo,
    encode_shard,
    length_histogram,
    write_manifest,
)
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


def make_manifest(shards: Sequence[EncodedShard], compression: str, token_dtype: str) -> Manifest:
    lengths = np.concatenate([shard.index.document_lengths for shard in shards])
    return Manifest(
        kind="text",
        compression=compression,
        token_dtype=token_dtype,
        members=["tokens"],
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
def write_source() -> SourceWriter:
    """Give a function that writes documents to a URL, dealt to shards in turn, and opens the source."""

    def write(
        url: str,
        documents: Sequence[Document],
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
        write_manifest(store, make_manifest(encoded, compression, token_dtype))
        return Source.open("web", url)

    return write


@pytest.fixture(scope="session")
def read_tokens() -> Callable[[Source], list[list[NDArray[np.unsignedinteger]]]]:
    """Give a function that reads every document of a source the fast way: a list of token arrays for each shard."""

    def read(source: Source) -> list[list[NDArray[np.unsignedinteger]]]:
        found = []
        for shard in range(len(source.shards)):
            index = source.index(shard)
            frames = source.read_frames([(shard, f) for f in range(len(index.offset))])
            found.append(
                [
                    np.frombuffer(raw, source.token_dtype, index.lengths[i], index.payload_offsets[i])
                    for f, raw in enumerate(frames)
                    for i in range(index.first_document[f], index.first_document[f + 1])
                ]
            )
        return found

    return read
