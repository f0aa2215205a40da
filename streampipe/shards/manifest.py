"""The manifest: what a source holds, written last, so that a folder without one is not a source."""

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from streampipe.errors import FormatVersionError, ManifestError
from streampipe.storage import Store

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
"""A file name beside the manifest: no folders, no `..`, nothing a URL or a shell could read otherwise."""

Kind = Literal["text", "conversation", "preference"]
Compression = Literal["zstd", "none"]
TokenDtype = Literal["uint16", "uint32"]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
BuildScalar = str | int | bool | None
BuildValue = BuildScalar | list[str | int] | dict[str, BuildScalar]
"""What a build option may be. Fractions are written as strings: floats have more than one spelling in JSON."""

MEMBERS_OF_KIND: Mapping[Kind, list[str]] = {
    "text": ["tokens"],
    "conversation": ["tokens"],
    "preference": ["chosen.tokens", "rejected.tokens"],
}
SHARD_SUFFIX: Mapping[Compression, str] = {"zstd": ".tar.zst", "none": ".tar"}
INDEX_SUFFIX = ".index.parquet"


class ShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard and its index, as the manifest lists them.

    A document's length is the number of its tokens in all its token members together; `longest` is the greatest.
    `hash` and `index_hash` are the SHA-256 of the files' bytes, as `sha256sum` prints them.
    """

    path: str
    bytes: Count
    frames: Count
    documents: Count
    tokens: Count
    loss_tokens: Count
    longest: Count
    hash: Sha256
    index_path: str
    index_bytes: Count
    index_hash: Sha256


class TokenizerInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tokenizer that made the ids; `core_hash` leaves out what may be a superset (added tokens)."""

    hash: str
    core_hash: str
    vocab_size: Count
    max_id: Count
    eos_id: Count | None
    bos_id: Count | None
    pad_id: Count | None
    special_tokens: dict[str, Count]


class InputEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input file of the build; `origin_file` of a document is its place in the manifest's list."""

    path: str
    bytes: Count
    hash: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A source. See FORMAT.md; `hash` is filled in by `write_manifest`."""

    format_version: int = FORMAT_VERSION
    kind: Kind
    compression: Compression
    token_dtype: TokenDtype
    members: list[str]
    tokenizer: TokenizerInfo
    chat_template_hash: str | None = None
    splits: dict[str, list[ShardEntry]]
    histogram: dict[str, list[tuple[Count, Count]]]
    counts: dict[str, Count]
    inputs: list[InputEntry]
    build: dict[str, BuildValue]
    hash: str = ""


def token_dtype_for(max_id: int) -> TokenDtype:
    """Return the narrowest dtype that holds every id up to `max_id`, added tokens included.

    Raises:
        ValueError: if no dtype of the format holds it.
    """
    if not 0 <= max_id < 2**32:
        raise ValueError(f"the largest token id must be within 0 and {2**32 - 1}, but got {max_id}")
    return "uint16" if max_id < 2**16 else "uint32"


def length_histogram(lengths: ArrayLike) -> list[tuple[int, int]]:
    """Count lengths by powers of two: ascending (bound, documents), where bound / 2 < length <= bound.

    Lengths 1, 3, 4, 5 give (1, 1), (4, 2), (8, 1). Bounds that no length reaches are left out.
    """
    values = np.asarray(lengths, dtype=np.int64)
    _, exponents = np.frexp(np.maximum(values - 1, 0).astype(np.float64))  # bit length of length - 1, exact below 2^53
    bounds, documents = np.unique(exponents, return_counts=True)
    return [(1 << int(bound), int(count)) for bound, count in zip(bounds, documents, strict=True)]


def write_manifest(store: Store, manifest: Manifest) -> Manifest:
    """Write the manifest in one put and return it with its hash filled in. Shards and indexes must be there already.

    Raises:
        ManifestError: if it contradicts itself.
    """
    where = f"{store.url}/{MANIFEST_NAME}"
    fault = _contradiction(manifest)
    if fault:
        raise ManifestError(f"{where}: not written: {fault}; this is a fault of the build", store.url, MANIFEST_NAME)
    manifest = msgspec.structs.replace(manifest, hash=_own_hash(manifest))
    store.write(MANIFEST_NAME, encode_manifest(manifest))
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the canonical bytes: UTF-8 JSON, keys sorted, no white space, one newline at the end."""
    return _canonical(manifest) + b"\n"


def read_manifest(store: Store) -> Manifest:
    """Read and check the manifest of a source.

    Raises:
        ManifestError: if it is absent, or not byte for byte what `write_manifest` wrote.
        FormatVersionError: if another version of the format wrote it.
    """
    try:
        data = store.read(MANIFEST_NAME)
    except FileNotFoundError as error:
        raise ManifestError(
            f"{store.url}/{MANIFEST_NAME}: there is no manifest, so this is not a source (or its build has not ended): "
            f"expected a folder that `shardtools build` wrote; check the path, or run the build to its end",
            store.url,
            MANIFEST_NAME,
        ) from error
    return decode_manifest(data, store.url)


def decode_manifest(data: bytes, url: str) -> Manifest:
    """Turn the bytes of a manifest into a checked `Manifest`; `url` is the source's, for messages.

    Raises:
        ManifestError: if the bytes are damaged or contradict themselves.
        FormatVersionError: if another version of the format wrote them.
    """
    _check_version(data, url)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(url, f"not a manifest of format version {FORMAT_VERSION}: {error}") from error
    if manifest.hash != (own := _own_hash(manifest)):
        raise _damaged(url, f"its own hash is {manifest.hash[:64]!r}, but its content hashes to {own!r}")
    if encode_manifest(manifest) != data:
        raise _damaged(url, "expected the canonical JSON encoding, but the bytes differ from it")
    if fault := _contradiction(manifest):
        raise _damaged(url, fault)
    return manifest


def _check_version(data: bytes, url: str) -> None:
    """Look at nothing but the version, which every version of the format keeps at the same place."""
    if not data:
        raise _damaged(url, "expected JSON, but the file is empty")
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).format_version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(url, f"expected JSON, but {error}; the file begins with {data[:40]!r}") from error
    if type(version) is int and version == FORMAT_VERSION:
        return
    raise FormatVersionError(
        f"{url}/{MANIFEST_NAME}: format version {version!r} is not known: expected {FORMAT_VERSION}; "
        f"use the release of streampipe that wrote this source, or build it again",
        url,
        MANIFEST_NAME,
    )


class _AnyVersion(msgspec.Struct):
    format_version: Any


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _own_hash(manifest: Manifest) -> str:
    content = msgspec.structs.asdict(manifest)
    del content["hash"]
    return hashlib.sha256(_canonical(content)).hexdigest()


def _damaged(url: str, fault: str) -> ManifestError:
    return ManifestError(
        f"{url}/{MANIFEST_NAME}: {fault}; restore the file from where it was built, or build the source again",
        url,
        MANIFEST_NAME,
    )


def _contradiction(manifest: Manifest) -> str | None:
    """Return what cannot be true of any source, or None."""
    if manifest.format_version != FORMAT_VERSION:
        return f"format_version is {manifest.format_version}, but this release writes {FORMAT_VERSION}"
    if manifest.members != MEMBERS_OF_KIND[manifest.kind]:
        return f"members of kind {manifest.kind} must be {MEMBERS_OF_KIND[manifest.kind]}, but got {manifest.members}"
    if manifest.tokenizer.max_id > np.iinfo(manifest.token_dtype).max:
        return f"token_dtype {manifest.token_dtype} cannot hold the tokenizer's id {manifest.tokenizer.max_id}"
    if set(manifest.histogram) != set(manifest.splits):
        return f"histogram must be of splits {sorted(manifest.splits)}, but got {sorted(manifest.histogram)}"
    return _contradiction_of_files(manifest) or _contradiction_of_counts(manifest)


def _contradiction_of_files(manifest: Manifest) -> str | None:
    seen = {MANIFEST_NAME}
    for split, shards in manifest.splits.items():
        if not shards:
            return f"split {split!r} has no shards; expected at least one"
        for entry in shards:
            for path, suffix in ((entry.path, SHARD_SUFFIX[manifest.compression]), (entry.index_path, INDEX_SUFFIX)):
                if not (SAFE_NAME.fullmatch(path) and path.endswith(suffix)):
                    return f"split {split!r} lists {path!r}; expected a plain file name beside the manifest, *{suffix}"
                if path in seen:
                    return f"split {split!r} lists {path!r}, which is listed before; expected every file once"
                seen.add(path)
    return None


def _contradiction_of_counts(manifest: Manifest) -> str | None:
    for split, shards in manifest.splits.items():
        for entry in shards:
            if not (entry.bytes and entry.index_bytes):
                return f"{entry.path} and {entry.index_path} cannot be empty"
            if not (1 <= entry.frames <= entry.documents <= entry.tokens and 1 <= entry.longest <= entry.tokens):
                return (
                    f"{entry.path} cannot have {entry.frames} frames, {entry.documents} documents, {entry.tokens} "
                    f"tokens and a longest document of {entry.longest}"
                )
            least = entry.tokens if manifest.kind == "text" else entry.documents * len(manifest.members)
            if not least <= entry.loss_tokens <= entry.tokens:
                return (
                    f"{entry.path} cannot have {entry.loss_tokens} trained tokens of {entry.tokens} in "
                    f"{entry.documents} documents of kind {manifest.kind}"
                )
        bounds = [bound for bound, _ in manifest.histogram[split]]
        if bounds != sorted(set(bounds)) or any(bound & (bound - 1) or not bound for bound in bounds):
            return f"the histogram of split {split!r} must have ascending powers of two as bounds, but got {bounds}"
        listed, counted = sum(entry.documents for entry in shards), sum(n for _, n in manifest.histogram[split])
        if listed != counted:
            return f"split {split!r} lists {listed} documents, but its histogram counts {counted}"
    return None
