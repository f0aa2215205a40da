"""Small real sources, and streams of them, for tests that need batches.

Every token says where it belongs: `source << 28 | document << 12 | place in the document`. So a stream can be turned
back into the documents that it delivers, whatever the batch claims.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray

from streampipe import StreamConfig, config_from
from streampipe.rng import raw_words
from streampipe.shards import Document, InputEntry, Manifest, Pair, TokenizerInfo, encode_shard, write_manifest
from streampipe.shards.manifest import MEMBERS_OF_KIND, length_histogram
from streampipe.shards.tokenizer_hash import TOKENIZER_NAME, tokenizer_hashes
from streampipe.storage import open_store

SEQ_LENGTH = 128
Lengths = Sequence[int]


def spelled(source: int, document: int, length: int) -> NDArray[np.uint32]:
    """Return the tokens of a document: uint32 [length]."""
    return (np.arange(length) + (source << 28 | document << 12)).astype(np.uint32)


def drawn_lengths(count: int, mean: int, *scope: int | str, longest: int = 300) -> list[int]:
    """Return lengths spread evenly over 1 to twice the mean, and now and then one as long as `longest`."""
    words = raw_words(count, "test lengths", *scope)
    lengths = 1 + (words % np.uint64(2 * mean)).astype(np.int64)
    lengths[7::40] = longest
    return [int(length) for length in lengths]


def write_source(
    url: str | Path,
    number: int,
    lengths: Lengths,
    *,
    shards: int = 3,
    sizes: Sequence[int] = (),
    frame_tokens: int = 400,
    compression: str = "zstd",
    token_dtype: str = "uint32",
    core_hash: str = "b" * 64,
    options: Mapping[str, Any] | None = None,
    backwards: bool = False,
) -> str:
    """Write a source whose document i has `lengths[i]` tokens that spell (number, i); return its URL.

    `backwards` writes the files in another order, which a listing may then show.
    """
    documents = [Document(f"{i:06d}", spelled(number, i, length)) for i, length in enumerate(lengths)]
    settings = {"frame_tokens": frame_tokens, "compression": compression, "token_dtype": token_dtype}
    return write_documents(
        url,
        documents,
        shards=shards,
        sizes=sizes,
        core_hash=core_hash,
        options=options,
        backwards=backwards,
        **settings,
    )


def specials_of(tokenizer: bytes) -> dict[str, int]:
    """Return the special tokens of a tokenizer.json."""
    return {token["content"]: token["id"] for token in json.loads(tokenizer)["added_tokens"] if token["special"]}


def write_documents(
    url: str | Path,
    documents: Sequence[Document | Pair],
    *,
    shards: int = 3,
    sizes: Sequence[int] = (),
    core_hash: str = "b" * 64,
    options: Mapping[str, Any] | None = None,
    backwards: bool = False,
    token_dtype: str = "uint32",
    compression: str = "zstd",
    tokenizer: bytes | None = None,
    build: Mapping[str, Any] | None = None,
    pad_id: int | None = None,
    **settings: Any,
) -> str:
    """Write a source of documents of one kind, in equal shards or in shards of `sizes` documents; return its URL.

    `tokenizer` is a tokenizer.json to put beside them, `build` what the manifest says of how they were made,
    `pad_id` what it says is the padding token.
    """
    store = open_store(str(url), options)
    settings |= {"token_dtype": token_dtype, "compression": compression}
    places = np.arange(len(documents))
    parts = np.split(places, np.cumsum(sizes)[:-1]) if sizes else np.array_split(places, min(shards, len(documents)))
    encoded = [
        encode_shard([documents[i] for i in part.tolist()], f"train-{shard:05d}", **settings)
        for shard, part in enumerate(parts)
    ]
    for shard in reversed(encoded) if backwards else encoded:
        store.write(shard.shard_name, shard.shard_bytes)
        store.write(shard.index_name, shard.index_bytes)
    largest = 2**16 - 1 if token_dtype == "uint16" else 2**31 - 1
    info = TokenizerInfo("a" * 64, core_hash, largest + 1, largest, 0, None, pad_id, {})
    if tokenizer is not None:
        store.write(TOKENIZER_NAME, tokenizer)
        info = msgspec.structs.replace(info, hash=tokenizer_hashes(tokenizer)[0], special_tokens=specials_of(tokenizer))
        if (build or {}).get("eos") is not None:
            info = msgspec.structs.replace(info, eos_id=info.special_tokens[build["eos"]])
    kind = documents[0].kind
    write_manifest(
        store,
        Manifest(
            kind=kind,
            compression=compression,
            token_dtype=token_dtype,
            members=MEMBERS_OF_KIND[kind],
            tokenizer=info,
            splits={"train": [shard.entry for shard in encoded]},
            histogram={"train": length_histogram(np.array([document.length for document in documents]))},
            counts={"documents": len(documents)},
            inputs=[InputEntry("corpus.jsonl", 12, "c" * 64)],
            build={"seed": 1} | ({} if build is None else {"train": dict(build)}),
        ),
    )
    return str(url)


WEB = drawn_lengths(150, 50, "web")
CODE = drawn_lengths(60, 70, "code")


def raw_stream(folder: str | Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the data of a config of two sources, `web` and `code`, below `folder`.

    `changes` are by dotted path, as `load_config` takes them, and are put in with plain dictionaries only.
    """
    raw: dict[str, Any] = {
        "seed": 7,
        "seq_length": SEQ_LENGTH,
        "sources": [
            {"name": "web", "path": f"{folder}/web", "weight": 0.6},
            {"name": "code", "path": f"{folder}/code", "weight": 0.4},
        ],
        "shuffle": {"shards": 2},
        "plan": {"windows": 4, "window_tokens": 1024},
        "batch": {"global_batch_size": 16, "micro_batch_size": 2},
        "loader": {"log_every": 0},
    }
    for path, value in (changes or {}).items():
        *heads, last = path.split(".")
        here = raw
        for head in heads:
            here = here.setdefault(head, {})
        here[last] = value
    return raw


def stream_of(folder: str | Path, changes: Mapping[str, Any] | None = None) -> StreamConfig:
    """Return the config of `raw_stream`."""
    return config_from(raw_stream(folder, changes))


def write_stream(path: Path, folder: str | Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Write the config of `raw_stream` as YAML, for a command line."""
    path.write_text(yaml.safe_dump(raw_stream(folder, changes), sort_keys=False))
    return path
