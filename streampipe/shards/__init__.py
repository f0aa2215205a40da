"""DOCUMENTS. What a source is on disk, written and read by one room. FORMAT.md is the normative text.

In: documents (`encode_shard`, `write_manifest`) or a URL (`Source.open`). Out: files, or the checked raw bytes of
frames and the lengths of documents. No torch, no order: which frame is read when is decided elsewhere.
"""

from streampipe.shards.codec import FrameCodec, codec_for
from streampipe.shards.document import AnyDocument, Document, Pair, Trained, as_stored
from streampipe.shards.frame import EncodedFrame, decode_frame, encode_frame, parse_frame
from streampipe.shards.frame_index import FrameIndex, Origins, Ragged
from streampipe.shards.index import decode_index, decode_origins, encode_index
from streampipe.shards.manifest import (
    FORMAT_VERSION,
    INDEX_SUFFIX,
    MANIFEST_NAME,
    SHARD_SUFFIX,
    Compression,
    InputEntry,
    Kind,
    Manifest,
    ShardEntry,
    TokenDtype,
    TokenizerInfo,
    decode_manifest,
    encode_manifest,
    length_histogram,
    read_manifest,
    token_dtype_for,
    write_manifest,
)
from streampipe.shards.source import Source
from streampipe.shards.tokenizer_hash import TOKENIZER_NAME, tokenizer_hashes
from streampipe.shards.verify import ShardCheck, check_shard, faults, split_faults, tokenizer_faults
from streampipe.shards.writer import FRAME_TOKENS, EncodedShard, encode_shard

__all__ = [
    "FORMAT_VERSION",
    "FRAME_TOKENS",
    "INDEX_SUFFIX",
    "MANIFEST_NAME",
    "SHARD_SUFFIX",
    "TOKENIZER_NAME",
    "AnyDocument",
    "Compression",
    "Document",
    "EncodedFrame",
    "EncodedShard",
    "FrameCodec",
    "FrameIndex",
    "InputEntry",
    "Kind",
    "Manifest",
    "Origins",
    "Pair",
    "Ragged",
    "ShardCheck",
    "ShardEntry",
    "Source",
    "TokenDtype",
    "TokenizerInfo",
    "Trained",
    "as_stored",
    "check_shard",
    "codec_for",
    "decode_frame",
    "decode_index",
    "decode_manifest",
    "decode_origins",
    "encode_frame",
    "encode_index",
    "encode_manifest",
    "encode_shard",
    "faults",
    "length_histogram",
    "parse_frame",
    "read_manifest",
    "split_faults",
    "token_dtype_for",
    "tokenizer_faults",
    "tokenizer_hashes",
    "write_manifest",
]
