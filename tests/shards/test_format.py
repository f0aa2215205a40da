"""FORMAT.md cannot go stale: its dissection is of frozen files, which are read, taken apart and built again here.

The frozen source was written when version 1 was defined, with libzstd 1.5.7 and pyarrow 26.0.1, and must stay readable.
"""

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard

from streampipe.shards import (
    Document,
    EncodedShard,
    InputEntry,
    Manifest,
    Source,
    TokenizerInfo,
    encode_manifest,
    encode_shard,
    faults,
    length_histogram,
    write_manifest,
)
from streampipe.shards import __file__ as room
from streampipe.storage import LocalStore

FROZEN = Path(__file__).parent / "golden" / "format-1"
FORMAT = Path(room).with_name("FORMAT.md")
STEM = "train-00000"
DOCUMENTS = [
    Document("000000", np.array([17, 4, 42, 1999, 0]), origin_file=0, origin_row=0),
    Document("000001", np.array([300, 0]), origin_file=0, origin_row=1),
    Document("000002", np.array([5, 65_535, 0]), origin_file=0, origin_row=3),
]


def build() -> tuple[EncodedShard, Manifest]:
    shard = encode_shard(DOCUMENTS, STEM, token_dtype="uint16", frame_tokens=6)
    manifest = Manifest(
        kind="text",
        compression="zstd",
        token_dtype="uint16",
        members=["tokens"],
        tokenizer=TokenizerInfo(
            hash=hashlib.sha256(b"tokenizer.json").hexdigest(),
            core_hash=hashlib.sha256(b"core").hexdigest(),
            vocab_size=65_536,
            max_id=65_535,
            eos_id=0,
            bos_id=None,
            pad_id=None,
            special_tokens={"<|endoftext|>": 0},
        ),
        splits={"train": [shard.entry]},
        histogram={"train": length_histogram(shard.index.document_lengths)},
        counts={"documents": 3, "dropped_empty": 1},
        inputs=[InputEntry("corpus.jsonl", 57, hashlib.sha256(b"corpus").hexdigest())],
        build={"frame_tokens": 6, "seed": 1234},
    )
    return shard, manifest


def hexdump(data: bytes, start: int = 0) -> str:
    """Dump as `xxd` does, with one `*` for repeated lines of zeros."""
    lines = []
    for i in range(0, len(data), 16):
        row = data[i : i + 16]
        if lines and not any(row) and not any(data[i - 16 : i]):
            if lines[-1] != "*":
                lines.append("*")
            continue
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start + i:08x}: {row.hex(' ', 2):<39}  {shown}")
    return "\n".join([*lines, f"{start + len(data):08x}:"])


def files() -> str:
    rows = [f"{path.stat().st_size:>5}  {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
            for path in sorted(FROZEN.iterdir())]  # fmt: skip
    return "bytes  SHA-256                                                           name\n" + "\n".join(rows)


def frames() -> str:
    lines = [
        "frame  offset  compressed_bytes  raw_bytes  checksum          documents  tokens  lengths  payload_offsets"
    ]
    index = Source.open("frozen", str(FROZEN)).index(0)
    for f in range(len(index.offset)):
        rows = slice(*index.first_document[f : f + 2].tolist())
        lengths, payloads = (",".join(map(str, array[rows])) for array in (index.lengths, index.payload_offsets))
        lines.append(
            f"{f:<5}  {index.offset[f]:<6}  {index.compressed_bytes[f]:<16}  {index.raw_bytes[f]:<9}  "
            f"{int(index.checksum[f]):016x}  {index.documents[f]:<9}  {index.tokens[f]:<6}  {lengths:<7}  {payloads}"
        )
    return "\n".join(lines)


def stored_frame() -> str:
    return hexdump(_stored(1), int(Source.open("frozen", str(FROZEN)).index(0).offset[1]))


def stored_frame_fields() -> str:
    data = _stored(1)
    descriptor, size = data[4], int.from_bytes(data[5:7], "little") + 256
    raw = _raw(1)
    end = len(data) - 4
    assert xxhash.xxh64_intdigest(raw) & 0xFFFFFFFF == int.from_bytes(data[-4:], "little")
    return _fields(
        [
            (0, 4, data[:4].hex(), "zstd magic number"),
            (
                4,
                1,
                f"{descriptor:02x}",
                f"descriptor: content size in 2 bytes, single segment, checksum ({descriptor:08b})",
            ),
            (5, 2, data[5:7].hex(), f"content size - 256, little endian: {size} bytes inside"),
            (7, end - 7, "...", "compressed block"),
            (end, 4, data[end:].hex(), "content checksum: lower half of XXH64 of the raw bytes"),
        ]
    )


def raw_frame() -> str:
    return hexdump(_raw(1))


def raw_frame_fields() -> str:
    raw = _raw(1)
    size = int(raw[124:135], 8)
    header = raw[512:640]
    tokens = np.frombuffer(raw, "<u2", 3, 640).tolist()
    return _fields(
        [
            (0, 100, "000002.tokens.npy", "tar: name, filled with zeros"),
            (100, 8, raw[100:107].decode(), "tar: mode"),
            (108, 16, raw[108:115].decode(), "tar: owner and group"),
            (124, 12, raw[124:135].decode(), f"tar: size in octal: {size} = 128 + {size - 128}"),
            (136, 12, raw[136:147].decode(), "tar: time"),
            (148, 8, raw[148:154].decode(), "tar: checksum: sum of the 512 bytes with spaces here"),
            (156, 1, raw[156:157].decode(), "tar: a plain file"),
            (157, 100, "", "tar: zeros (not a link)"),
            (257, 8, "ustar, 00", "tar: magic and version"),
            (265, 247, "", "tar: zeros (no names, no devices, no prefix)"),
            (512, 8, header[:8].hex(), "npy: magic and version 1.0"),
            (520, 2, header[8:10].hex(), f"npy: {int.from_bytes(header[8:10], 'little')} bytes of header follow"),
            (522, 118, header[10:70].decode().strip(), "npy: dtype and shape; spaces, newline"),
            (640, 6, raw[640:646].hex(" ", 2), f"token ids {tokens}: payload_offset 640, length 3"),
            (646, 378, "", "zeros up to the next block of 512"),
            (1024, 1024, "", "two blocks of zeros: end of the tar file, in the last frame only"),
        ]
    )


def index_row() -> str:
    table = pq.read_table(FROZEN / f"{STEM}.index.parquet")
    types = {name: str(table.schema.field(name).type).replace(" not null", "") for name in table.column_names}
    lines = [f"{name:<17} {types[name]:<22} {table.column(name)[1].as_py()}" for name in table.column_names]
    version = (table.schema.metadata or {})[b"streampipe.format_version"].decode()
    return "\n".join(
        ["column            type                   frame 1", *lines, f"metadata: streampipe.format_version = {version}"]
    )


def manifest() -> str:
    return json.dumps(json.loads((FROZEN / "manifest.json").read_bytes()), indent=1)


def _fields(rows: list[tuple[int, int, str, str]]) -> str:
    lines = [f"{offset:>6}  {size:>5}  {value:<59}  {meaning}".rstrip() for offset, size, value, meaning in rows]
    return "\n".join([f"{'offset':>6}  {'bytes':>5}  {'value':<59}  meaning", *lines])


def _stored(f: int) -> bytes:
    source = Source.open("frozen", str(FROZEN))
    index = source.index(0)
    shard = (FROZEN / source.shards[0].path).read_bytes()
    return shard[index.offset[f] : index.offset[f] + index.compressed_bytes[f]]


def _raw(f: int) -> bytes:
    return Source.open("frozen", str(FROZEN)).read_frames([(0, f)])[0]


BLOCKS = [files, frames, stored_frame, stored_frame_fields, raw_frame, raw_frame_fields, index_row, manifest]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_the_text_shows_the_bytes_of_the_frozen_source(block: "type[files]") -> None:
    assert f"```text\n{block()}\n```" in FORMAT.read_text(), f"FORMAT.md does not show:\n{block()}"


def test_the_frozen_source_is_still_read() -> None:
    source = Source.open("frozen", str(FROZEN))
    assert list(faults(source)) == []
    index = source.index(0)
    assert index.lengths.tolist() == [len(document.tokens) for document in DOCUMENTS]
    for f, first in enumerate((0, 2)):
        (raw,) = source.read_frames([(0, f)])
        for i in range(first, int(index.first_document[f + 1])):
            tokens = np.frombuffer(raw, source.token_dtype, index.lengths[i], index.payload_offsets[i])
            assert tokens.tolist() == DOCUMENTS[i].tokens.tolist()
    origins = source.origins(0)
    assert origins is not None
    assert origins.row.tolist() == [0, 1, 3]


def test_the_frozen_source_is_built_again(tmp_path: Path) -> None:
    shard, built = build()
    frozen = Source.open("frozen", str(FROZEN))
    assert shard.index.raw_bytes.tolist() == frozen.index(0).raw_bytes.tolist()
    for f in range(2):
        stored = shard.shard_bytes[shard.index.offset[f] :][: shard.index.compressed_bytes[f]]
        assert zstandard.ZstdDecompressor().decompress(stored) == _raw(f)
    same_zstd, same_pyarrow = zstandard.ZSTD_VERSION == (1, 5, 7), pa.__version__ == "26.0.1"
    if same_zstd:
        assert shard.shard_bytes == (FROZEN / shard.shard_name).read_bytes()
    if same_zstd and same_pyarrow:
        assert shard.index_bytes == (FROZEN / shard.index_name).read_bytes()
    # What the compressors decide is set equal; all the rest of the manifest must be, to the byte.
    built = msgspec.structs.replace(built, splits=frozen.manifest.splits)
    written = write_manifest(LocalStore(str(tmp_path)), built)
    assert (
        encode_manifest(written) == (FROZEN / "manifest.json").read_bytes() == (tmp_path / "manifest.json").read_bytes()
    )
    sizes = {name: getattr(shard.entry, name) for name in ("frames", "documents", "tokens", "loss_tokens", "longest")}
    assert sizes == {name: getattr(frozen.shards[0], name) for name in sizes}
