"""The index of a shard: where its frames are, how long its documents are. A Parquet file with one row per frame."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampipe.errors import FormatVersionError, ShardCorruptError
from streampipe.shards.frame_index import FrameIndex, Int64, Origins, Ragged
from streampipe.shards.loss_spans import trained_tokens
from streampipe.shards.manifest import FORMAT_VERSION, MEMBERS_OF_KIND, Kind, ShardEntry

__all__ = ["MAX_FRAME_BYTES", "FrameIndex", "Origins", "Ragged", "decode_index", "decode_origins", "encode_index"]

VERSION_KEY = b"streampipe.format_version"
MAX_FRAME_BYTES = 2**31 - 1
"""No frame may unpack to more, whatever its index says."""


def _list(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element, nullable=False))


_FRAME_COLUMNS = ("offset", "compressed_bytes", "raw_bytes", "checksum", "documents", "tokens")
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(_FRAME_COLUMNS, pa.int64()),
    "checksum": pa.uint64(),
    "lengths": _list(pa.int32()),
    "payload_offsets": _list(pa.int64()),
    "loss_tokens": _list(pa.int32()),
    "loss_spans": _list(_list(pa.int32())),
    "fragments": _list(_list(pa.int32())),
    "origin_file": _list(pa.int32()),
    "origin_row": _list(pa.int64()),
}
_OPTIONAL = ("loss_tokens", "loss_spans", "fragments", "origin_file", "origin_row")
_ORIGINS = ("origin_file", "origin_row")


def encode_index(index: FrameIndex, origins: Origins | None = None) -> bytes:
    """Return the Parquet file of an index; the same bytes for the same input and release of pyarrow."""
    per_document = index.first_document
    per_member = per_document * index.members
    columns: dict[str, pa.Array] = {name: pa.array(getattr(index, name), _TYPES[name]) for name in _FRAME_COLUMNS}
    flat: dict[str, tuple[Int64, NDArray[Any] | Ragged | None]] = {
        "lengths": (per_member, index.lengths),
        "payload_offsets": (per_member, index.payload_offsets),
        "loss_tokens": (per_member, index.loss_tokens),
        "loss_spans": (per_member, index.loss_spans),
        "fragments": (per_document, index.fragments),
        "origin_file": (per_document, origins.file if origins else None),
        "origin_row": (per_document, origins.row if origins else None),
    }
    for name, (borders, values) in flat.items():
        if values is not None:
            columns[name] = _cut(borders, values, _TYPES[name])
    metadata = {VERSION_KEY: str(FORMAT_VERSION).encode()}
    schema = pa.schema([pa.field(name, _TYPES[name], nullable=False) for name in columns], metadata=metadata)
    sink = pa.BufferOutputStream()
    encodings = {_leaf(name): "PLAIN" if name == "checksum" else "DELTA_BINARY_PACKED" for name in columns}
    table = pa.Table.from_arrays(list(columns.values()), schema=schema)
    pq.write_table(
        table,
        sink,
        row_group_size=len(index.offset),
        compression="zstd",
        use_dictionary=False,
        column_encoding=encodings,
    )
    return bytes(sink.getvalue().to_pybytes())


def decode_index(
    data: bytes, entry: ShardEntry, url: str, *, kind: Kind | None = None, itemsize: int = 2
) -> FrameIndex:
    """Check the bytes of an index and return its arrays.

    Args:
        data: the file.
        entry: what the manifest says of this shard and its index.
        url: the source's URL, for messages.
        kind: of the source, if known: it decides how many token members a document has, and which columns there are.
        itemsize: bytes of a token.

    Raises:
        ShardCorruptError: if it is not the file that the manifest lists, or contradicts the manifest or itself.
        FormatVersionError: if another version of the format wrote it.
    """
    try:
        table = _read_table(data, entry, url)
        index = _arrays(table)
        _check(index, entry, kind, itemsize)
    except (ValueError, TypeError, OSError, KeyError, pa.ArrowException) as error:
        raise ShardCorruptError(
            f"{url}/{entry.index_path}: the index of {entry.path} is damaged: {error}; restore this file from where it "
            f"was built; `shardtools verify {url}` lists all faults",
            url,
            entry.index_path,
        ) from error
    return index


def decode_origins(data: bytes, entry: ShardEntry, url: str) -> Origins | None:
    """Return where the documents of a checked index came from, or None if it does not say.

    Raises:
        ShardCorruptError: if it is not the file that the manifest lists.
    """
    decode_index(data, entry, url)
    table = pq.read_table(pa.BufferReader(data), use_threads=False)
    if not set(_ORIGINS) <= set(table.column_names):
        return None
    return Origins(*(_numbers(_column(table, name).values) for name in _ORIGINS))


def _read_table(data: bytes, entry: ShardEntry, url: str) -> pa.Table:
    if len(data) != entry.index_bytes:
        raise ValueError(f"expected {entry.index_bytes} bytes, got {len(data)}")
    if (found := hashlib.sha256(data).hexdigest()) != entry.index_hash:
        raise ValueError(f"expected SHA-256 {entry.index_hash}, got {found}")
    file = pq.ParquetFile(pa.BufferReader(data))
    version = (file.schema_arrow.metadata or {}).get(VERSION_KEY, b"none").decode(errors="replace")
    if version != str(FORMAT_VERSION):
        raise FormatVersionError(
            f"{url}/{entry.index_path}: format version {version!r} is not known: expected {FORMAT_VERSION}; use the "
            f"release of streampipe that wrote this source, or build it again",
            url,
            entry.index_path,
        )
    columns = [name for name in _TYPES if name in file.schema_arrow.names and name not in _ORIGINS]
    return file.read(columns=columns, use_threads=False)


def _arrays(table: pa.Table) -> FrameIndex:
    for name in _TYPES:
        if name not in table.column_names and name not in _OPTIONAL:
            raise ValueError(f"expected a column {name!r}, found {table.column_names}")
    per_frame = {name: _numbers(_column(table, name)) for name in _FRAME_COLUMNS}
    lists = {name: _column(table, name) for name in table.column_names if name not in _FRAME_COLUMNS}
    listed, documents = len(lists["lengths"].values), per_frame["documents"]
    if not len(documents) or documents.min() < 1 or documents.max() > listed:
        raise ValueError("expected at least one frame, and in each at least one document that is listed")
    first_document = np.concatenate(([0], np.cumsum(documents)))
    members = listed // int(first_document[-1])
    for name, column in lists.items():
        each = 1 if name == "fragments" else members
        if not np.array_equal(column.offsets.to_numpy(), first_document * each):
            raise ValueError(f"column {name!r} must hold {each} values a document in every frame")
    return FrameIndex(
        **per_frame,
        first_document=first_document,
        lengths=_numbers(lists["lengths"].values),
        payload_offsets=_numbers(lists["payload_offsets"].values),
        loss_tokens=_numbers(lists["loss_tokens"].values) if "loss_tokens" in lists else None,
        loss_spans=_ragged(lists["loss_spans"].values) if "loss_spans" in lists else None,
        fragments=_ragged(lists["fragments"].values) if "fragments" in lists else None,
    )


def _check(index: FrameIndex, entry: ShardEntry, kind: Kind | None, itemsize: int) -> None:
    """Compare an index with its entry and with itself."""
    totals = {
        "frames": len(index.offset),
        "documents": int(index.first_document[-1]),
        "tokens": int(index.lengths.sum(dtype=np.int64)),
        "longest": int(index.document_lengths.max()),
    }
    trained = index.lengths if index.loss_tokens is None else index.loss_tokens
    totals["loss_tokens"] = int(trained.sum(dtype=np.int64))
    for name, found in totals.items():
        if found != getattr(entry, name):
            raise ValueError(f"the manifest says {getattr(entry, name)} {name}, the index {found}")
    _check_loss(index, kind)
    stored = index.compressed_bytes
    if stored.min() < 1 or stored.max() > entry.bytes or int(stored.sum()) != entry.bytes:
        raise ValueError(f"expected frames of {entry.bytes} bytes together, got {int(stored.sum())}")
    if not np.array_equal(index.offset, np.cumsum(stored) - stored):
        raise ValueError("expected every frame to start where the one before it ends")
    if index.raw_bytes.min() < 1 or index.raw_bytes.max() > MAX_FRAME_BYTES:
        raise ValueError(f"expected frames of 1 to {MAX_FRAME_BYTES} raw bytes, got {int(index.raw_bytes.max())}")
    if index.fragments is not None:
        _check_fragments(index.fragments, index.document_lengths)
    firsts = index.first_document[:-1] * index.members
    if not np.array_equal(index.tokens, np.add.reduceat(index.lengths, firsts, dtype=np.int64)):
        raise ValueError("expected `tokens` of every frame to be the sum of its `lengths`")
    room = np.repeat(index.raw_bytes, index.documents * index.members)
    ends = index.payload_offsets + index.lengths.astype(np.int64) * itemsize
    if index.lengths.min() < 1 or index.payload_offsets.min() < 0 or bool((ends > room).any()):
        raise ValueError("expected documents of at least one token, inside their frame")
    if bool((index.payload_offsets % itemsize).any()):
        raise ValueError(f"expected `payload_offsets` to be multiples of {itemsize}, the bytes of a token")


def _check_loss(index: FrameIndex, kind: Kind | None) -> None:
    """Compare the columns of trained tokens with the kind, and with each other."""
    given = (index.loss_tokens is not None, index.loss_spans is not None)
    if kind is not None:
        if index.members != (members := len(MEMBERS_OF_KIND[kind])):
            raise ValueError(f"expected {members} token members a document, got {index.members}")
        needed = kind != "text"
        if given != (needed, needed):
            told = "columns" if needed else "no columns"
            raise ValueError(f"expected {told} 'loss_tokens' and 'loss_spans' in a source of kind {kind}")
    if index.loss_spans is not None:
        trained = trained_tokens(index.loss_spans, index.lengths)
        if index.loss_tokens is None or not np.array_equal(trained, index.loss_tokens):
            raise ValueError("expected `loss_tokens` of every member to be the sum of its `loss_spans`")


def _check_fragments(fragments: Ragged, lengths: Int64) -> None:
    """Compare the places of separators with the lengths of their documents, int64 [D]."""
    ascending = np.diff(fragments.values.astype(np.int64), prepend=-1) > 0
    firsts = fragments.offsets[:-1][np.diff(fragments.offsets) > 0]
    ascending[firsts] = True
    limits = np.repeat(lengths, np.diff(fragments.offsets))
    if not ascending.all() or bool(((fragments.values < 0) | (fragments.values >= limits)).any()):
        raise ValueError("expected `fragments` to be ascending places inside their documents")


def _leaf(name: str) -> str:
    depth, kind = 0, _TYPES[name]
    while pa.types.is_list(kind):
        depth, kind = depth + 1, kind.value_type
    return name + ".list.element" * depth


def _cut(borders: Int64, values: NDArray[Any] | Ragged, kind: pa.DataType) -> pa.Array:
    """Make a list column whose row `f` holds `values[borders[f]:borders[f + 1]]`."""
    inner = (
        _cut(values.offsets, values.values, kind.value_type)
        if isinstance(values, Ragged)
        else pa.array(values, kind.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(borders, pa.int32()), inner, type=kind)


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    if column.type != _TYPES[name] or column.null_count:
        raise ValueError(f"column {name!r} must be {_TYPES[name]} without nulls, but got {column.type}")
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _numbers(values: pa.Array) -> Any:
    if values.null_count:
        raise ValueError("expected numbers without nulls")
    return values.to_numpy(zero_copy_only=False)


def _ragged(values: pa.Array) -> Ragged:
    if values.null_count:
        raise ValueError("expected lists without nulls")
    return Ragged(values.offsets.to_numpy().astype(np.int64), _numbers(values.values))
