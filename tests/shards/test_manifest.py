"""The manifest: byte for byte what was written, or an error that names it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streampipe.errors import FormatVersionError, ManifestError
from streampipe.shards import (
    MANIFEST_NAME,
    Document,
    Manifest,
    ShardEntry,
    Source,
    decode_manifest,
    encode_manifest,
    read_manifest,
    write_manifest,
)
from streampipe.shards.manifest import _own_hash
from streampipe.storage import LocalStore

WriteSource = Callable[..., Source]


@pytest.fixture
def manifest(tmp_path: Path, documents: Sequence[Document], write_source: WriteSource) -> Manifest:
    return write_source(str(tmp_path / "made"), documents).manifest


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "web"))


def test_what_is_written_is_read(manifest: Manifest, store: LocalStore) -> None:
    written = write_manifest(store, msgspec.structs.replace(manifest, hash=""))
    assert len(written.hash) == 64
    assert read_manifest(store) == written == manifest
    assert store.names() == [MANIFEST_NAME]


def test_the_order_in_which_keys_were_inserted_does_not_show(manifest: Manifest) -> None:
    turned = msgspec.structs.replace(
        manifest,
        build=dict(reversed(manifest.build.items())),
        counts=dict(reversed(manifest.counts.items())),
    )
    assert encode_manifest(turned) == encode_manifest(manifest)


def test_a_folder_without_a_manifest_is_not_a_source(store: LocalStore) -> None:
    with pytest.raises(ManifestError, match=r"web/manifest\.json: there is no manifest") as caught:
        read_manifest(store)
    assert (caught.value.source, caught.value.path) == (store.url, MANIFEST_NAME)


def _damages() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "empty": lambda data: b"",
        "an HTML page": lambda data: b"<!DOCTYPE html><html><body>Log in</body></html>",
        "an XML error": lambda data: b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>',
        "truncated": lambda data: data[:-2],
        "without its newline": lambda data: data[:-1],
        "a space more": lambda data: data.replace(b",", b", ", 1),
        "a newline more": lambda data: data + b"\n",
        "another key name": lambda data: data.replace(b'"kind"', b'"kinD"', 1),
        "an unknown key": lambda data: data.replace(b"{", b'{"a":1,', 1),
        "a repeated key": lambda data: data.replace(b'"kind":"text"', b'"kind":"text","kind":"text"', 1),
        "another number": lambda data: data.replace(b'"documents":30', b'"documents":31', 1),
        "a float": lambda data: data.replace(b'"documents":30', b'"documents":30.0', 1),
        "a negative number": lambda data: data.replace(b'"documents":30', b'"documents":-3', 1),
        "an escape": lambda data: data.replace(b'"text"', b'"\\u0074ext"', 1),
        "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
        "not UTF-8": lambda data: data.replace(b"corpus", b"c\xffrpus", 1),
        "JSON of something else": lambda data: b"[1, 2, 3]",
        "without a version": lambda data: b'{"kind":"text"}',
        "nested without end": lambda data: b"[" * 100_000,
        "null": lambda data: b"null",
    }


@pytest.mark.parametrize("damage", _damages())
def test_a_damaged_manifest_is_an_error_that_names_it(manifest: Manifest, store: LocalStore, damage: str) -> None:
    data = encode_manifest(manifest)
    damaged = _damages()[damage](data)
    assert damaged != data
    store.write(MANIFEST_NAME, damaged)
    with pytest.raises(ManifestError) as caught:
        Source.open("web", store.url)
    assert str(caught.value).startswith(f"{store.url}/{MANIFEST_NAME}: ")
    assert "restore the file" in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("version", ["2", "0", '"1"', "1.0", "null", "true"])
def test_another_version_is_refused_by_name_before_anything_else_is_looked_at(version: str) -> None:
    data = f'{{"format_version":{version},"of":"the future"}}'.encode()
    with pytest.raises(FormatVersionError, match=r"format version .* is not known: expected 1; use the release"):
        decode_manifest(data, "s3://bucket/web")


def _signed(manifest: Manifest, **changes: Any) -> bytes:
    """A manifest that is sound but for what it says, as an attacker or a faulty builder would write it."""
    changed = msgspec.structs.replace(manifest, **changes)
    return encode_manifest(msgspec.structs.replace(changed, hash=_own_hash(changed)))


@pytest.mark.parametrize(
    "path",
    [
        *(
            "../evil.tar.zst",
            "/etc/evil.tar.zst",
            "a/../../evil.tar.zst",
            "s3://other/evil.tar.zst",
            "sub/evil.tar.zst",
        ),
        *(
            "pipe:touch evil.tar.zst",
            "..",
            "",
            ".tar.zst",
            "evil.tar",
            "evil\n.tar.zst",
            "-evil.tar.zst",
            "C:\\evil.tar.zst",
        ),
    ],
)
def test_a_path_that_is_not_a_plain_name_is_refused(manifest: Manifest, path: str) -> None:
    entry = msgspec.structs.replace(manifest.splits["train"][0], path=path)
    data = _signed(manifest, splits={"train": [entry, manifest.splits["train"][1]]})
    with pytest.raises(ManifestError, match="expected a plain file name beside the manifest"):
        decode_manifest(data, "s3://bucket/web")
    index = msgspec.structs.replace(manifest.splits["train"][0], index_path=path)
    data = _signed(manifest, splits={"train": [index, manifest.splits["train"][1]]})
    with pytest.raises(ManifestError, match="expected a plain file name beside the manifest"):
        decode_manifest(data, "s3://bucket/web")


def _contradictions(manifest: Manifest) -> dict[str, dict[str, Any]]:
    first, second = manifest.splits["train"]
    change = msgspec.structs.replace

    def with_first(**fields: int) -> dict[str, Any]:
        return {"splits": {"train": [change(first, **fields), second]}}

    return {
        "listed before": {"splits": {"train": [first, first]}},
        "has no shards": {"splits": {"train": []}},
        "histogram must be of splits": {"histogram": {}},
        "but its histogram counts": {"histogram": {"train": [(256, 1)]}},
        "ascending powers of two": {"histogram": {"train": [(3, 60)]}},
        "cannot hold the tokenizer's id": {"tokenizer": change(manifest.tokenizer, max_id=65_536)},
        "members of kind text": {"members": ["tokens", "chosen.tokens"]},
        "cannot be empty": with_first(bytes=0),
        "cannot have 99": with_first(frames=99),
        "a longest document of 0": with_first(longest=0),
        "trained tokens": with_first(loss_tokens=10**9),
    }


def test_a_manifest_that_contradicts_itself_is_neither_read_nor_written(manifest: Manifest, store: LocalStore) -> None:
    for fault, changes in _contradictions(manifest).items():
        with pytest.raises(ManifestError, match=fault):
            decode_manifest(_signed(manifest, **changes), "s3://bucket/web")
        with pytest.raises(ManifestError, match=fault):
            write_manifest(store, msgspec.structs.replace(manifest, **changes))
    assert store.names() == []


def test_100_000_shards_stay_under_50_megabytes(manifest: Manifest) -> None:
    widest = msgspec.structs.replace(
        manifest.splits["train"][0],
        **dict.fromkeys(("bytes", "tokens", "loss_tokens", "documents", "index_bytes"), 10**10),
        frames=10**5,
        longest=10**8,
    )
    assert isinstance(widest, ShardEntry)
    assert 100_000 * (len(msgspec.json.encode(widest)) + 1) < 50_000_000
