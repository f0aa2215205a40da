"""Law 5: damage is an error that names the file; it never yields other tokens or fewer documents."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from streampipe.errors import ShardCorruptError, ShardMissingError, SourceError
from streampipe.shards import AnyDocument, Document, Source, faults
from streampipe.shards.frame_decoder import FrameDecoder

WriteSource = Callable[..., Source]
OfKind = dict[str, Sequence[AnyDocument]]
ReadTokens = Callable[[Source], list[list[np.ndarray]]]


def _found(url: str, read_tokens: ReadTokens) -> tuple[str, list[str]]:
    """Return what streaming and what verify say of a source; each is "" or empty if it finds nothing wrong."""
    try:
        streaming = ""
        read_tokens(Source.open("web", url))
    except SourceError as error:
        assert f"{error.source}/{error.path}" in str(error)
        streaming = str(error)
    assert _found_beside(url) == streaming
    try:
        verifying = list(faults(Source.open("web", url)))
    except SourceError as error:
        verifying = [str(error)]
    return streaming, verifying


def _found_beside(url: str) -> str:
    """Return the error when frames are read as local ones are: here, and decoded together in another thread."""
    decoder = FrameDecoder()
    try:
        source = Source.open("web", url)
        for shard in range(len(source.shards)):
            frames = [(shard, f) for f in range(len(source.index(shard).offset))]
            decoder.submit(source.fetch_frames(frames), lambda number, raw: None).result(10)
    except SourceError as error:
        return str(error)
    finally:
        decoder.close()
    return ""


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("name", ["train-00001.tar", "train-00001.index.parquet", "manifest.json"])
def test_200_cuts_and_200_flips_are_all_errors_that_name_the_file(
    tmp_path: Path,
    documents: list[Document],
    write_source: WriteSource,
    read_tokens: ReadTokens,
    name: str,
    compression: str,
) -> None:
    write_source(str(tmp_path), documents, compression=compression)
    (path,) = tmp_path.glob(f"{name}*")
    sound = path.read_bytes()
    assert _found(str(tmp_path), read_tokens) == ("", [])
    chance = random.Random(f"{name} {compression}")
    cuts = [sound[: chance.randrange(len(sound))] for _ in range(198)] + [b"", sound[:-1]]
    flips = [_flipped(sound, chance.randrange(8 * len(sound))) for _ in range(200)]
    for damaged in cuts + flips:
        path.write_bytes(damaged)
        streaming, verifying = _found(str(tmp_path), read_tokens)
        assert str(path) in streaming
        assert verifying
        assert all(str(path) in line for line in verifying)
        assert any(word in streaming for word in ("restore", "use the release"))


@pytest.mark.parametrize("kind", ["conversation", "preference"])
@pytest.mark.parametrize("name", ["train-00001.tar.zst", "train-00001.index.parquet"])
def test_50_cuts_and_flips_of_conversations_and_pairs_are_all_errors_that_name_the_file(
    tmp_path: Path, of_kind: OfKind, write_source: WriteSource, read_tokens: ReadTokens, name: str, kind: str
) -> None:
    write_source(str(tmp_path), of_kind[kind])
    path = tmp_path / name
    sound = path.read_bytes()
    assert _found(str(tmp_path), read_tokens) == ("", [])
    chance = random.Random(f"{name} {kind}")
    cuts = [sound[: chance.randrange(len(sound))] for _ in range(20)]
    flips = [_flipped(sound, chance.randrange(8 * len(sound))) for _ in range(30)]
    for damaged in cuts + flips:
        path.write_bytes(damaged)
        streaming, verifying = _found(str(tmp_path), read_tokens)
        assert str(path) in streaming
        assert verifying
        assert all(str(path) in line for line in verifying)


def _flipped(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@pytest.mark.parametrize("name", ["train-00000.tar.zst", "train-00000.index.parquet"])
@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_a_missing_file_is_named_and_not_a_shorter_epoch(
    tmp_path: Path,
    documents: list[Document],
    write_source: WriteSource,
    read_tokens: ReadTokens,
    name: str,
    scheme: str,
) -> None:
    url = f"{scheme}{tmp_path}"
    write_source(url, documents).store.delete(name)
    with pytest.raises(ShardMissingError, match=name) as caught:
        read_tokens(Source.open("web", url))
    assert (caught.value.source, caught.value.path) == (url, name)
    (line,) = faults(Source.open("web", url))
    assert f"{url}/{name}: expected this file" in line


@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_a_shard_cut_at_a_frame_border_or_to_nothing_is_an_error_behind_every_store(
    tmp_path: Path, documents: list[Document], write_source: WriteSource, read_tokens: ReadTokens, scheme: str
) -> None:
    source = write_source(f"{scheme}{tmp_path}", documents)
    path, data = source.shards[1].path, source.store.read(source.shards[1].path)
    for end in (0, *source.index(1).offset[1:].tolist()):
        source.store.write(path, data[:end])
        with pytest.raises(ShardCorruptError, match=f"{path}: frame . at bytes .* short read"):
            read_tokens(Source.open("web", source.url))
        (line,) = faults(Source.open("web", source.url))
        assert f"{source.url}/{path}: ends at byte {end}, expected {len(data)} bytes" in line


def test_bytes_behind_the_end_are_found_by_verify(
    tmp_path: Path, documents: list[Document], write_source: WriteSource
) -> None:
    write_source(str(tmp_path), documents)
    with (tmp_path / "train-00000.tar.zst").open("ab") as file:
        file.write(b"junk")
    (line,) = faults(Source.open("web", str(tmp_path)))
    assert "train-00000.tar.zst: goes on after byte" in line


def test_a_flipped_bit_is_one_fault_with_frame_and_byte(
    tmp_path: Path, documents: list[Document], write_source: WriteSource
) -> None:
    source = write_source(str(tmp_path), documents)
    path = tmp_path / source.shards[0].path
    offset = int(source.index(0).offset[1])
    path.write_bytes(_flipped(path.read_bytes(), 8 * (offset + 20)))
    (line,) = faults(source)
    assert f"{path}: frame 1 at bytes {offset} to" in line
    assert "checksum: expected" in line
    with pytest.raises(ShardCorruptError, match="frame 1"):
        Source.open("web", str(tmp_path)).read_frames([(0, 0), (0, 1), (0, 2)])


def test_swapped_shards_are_errors(
    tmp_path: Path, documents: list[Document], write_source: WriteSource, read_tokens: ReadTokens
) -> None:
    write_source(str(tmp_path), documents)
    first, second, other = (tmp_path / name for name in ("train-00000.tar.zst", "train-00001.tar.zst", "other"))
    first.rename(other)
    second.rename(first)
    other.rename(second)
    streaming, verifying = _found(str(tmp_path), read_tokens)
    assert "train-00000.tar.zst: frame 0" in streaming
    assert verifying
