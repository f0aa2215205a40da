"""Frames: our headers are those of tarfile and numpy, and what is not plain is refused, not interpreted."""

import io
import struct
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import xxhash
import zstandard

from streampipe.errors import ShardCorruptError
from streampipe.shards import Document, FrameIndex, codec_for, decode_frame, encode_frame, encode_shard, parse_frame
from streampipe.shards.frame import StoredFrame, decode_frames
from streampipe.shards.member import END_MARKER, npy_header, parse_npy, tar_header

WHERE = "s3://bucket/web/train-00000.tar.zst"


@pytest.mark.parametrize("size", [0, 1, 511, 512, 128 + 2 * 65_536, 8**11 - 1])
def test_a_tar_header_is_the_one_that_tarfile_writes(size: int) -> None:
    info = tarfile.TarInfo("000123.tokens.npy")
    info.size = size
    assert tar_header("000123.tokens.npy", size) == info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(("name", "size"), [("n" * 101, 1), ("", 1), ("ä", 1), ("a", 8**11), ("a", -1)])
def test_a_header_that_would_need_an_extension_is_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError, match=r"tar member must have|ascii"):
        tar_header(name, size)


@pytest.mark.parametrize(("dtype", "shape"), [("<u2", (5,)), ("<u4", (123_456_789,)), ("<i4", (7, 2)), ("<u2", (0,))])
def test_an_npy_header_is_the_one_that_numpy_writes(dtype: str, shape: tuple[int, ...]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(shape if shape[0] < 1_000 else (5,), dtype))
    assert len(npy_header(dtype, shape)) == 128
    if shape[0] < 1_000:
        assert buffer.getvalue()[:128] == npy_header(dtype, shape)
        assert parse_npy(buffer.getvalue()).shape == shape


@pytest.mark.parametrize(
    "array",
    [np.array([{"a": 1}], object), np.array([1.5]), np.array([1], ">u2"), np.asfortranarray(np.ones((2, 3), int))],
)
def test_an_npy_that_is_not_plain_integers_is_refused_and_nothing_is_unpickled(array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    with pytest.raises(ValueError, match="expected"):
        parse_npy(buffer.getvalue())


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    parts = []
    for info, data in members:
        info.size = len(data)
        parts += [info.tobuf(form), data, bytes(-len(data) % 512)]
    return b"".join(parts)


TOKENS = _npy(np.array([1, 2], np.uint16))


def _member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info, TOKENS if kind == tarfile.REGTYPE else b""


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ([_member("../../evil.tokens.npy")], "is not the name of a member"),
        ([_member("/abs/evil.tokens.npy")], "is not the name of a member"),
        ([_member("a.pkl")], "is not the name of a member"),
        ([_member("a.pyd")], "is not the name of a member"),
        ([_member("a")], "is not the name of a member"),
        ([_member("a.tokens.npy", tarfile.SYMTYPE, linkname="/etc/passwd")], "expected the tar header of a plain file"),
        ([_member("a.tokens.npy", tarfile.LNKTYPE, linkname="b")], "expected the tar header of a plain file"),
        ([_member("a.tokens.npy", tarfile.CHRTYPE)], "expected the tar header of a plain file"),
        ([_member("a.tokens.npy", mode=0o4755)], "expected the tar header of a plain file"),
        ([_member("a.tokens.npy"), _member("a.tokens.npy")], "is there twice"),
        (
            [_member("a.chosen.tokens.npy"), _member("b.chosen.tokens.npy"), _member("a.rejected.tokens.npy")],
            "document 'a' are not adjacent",
        ),
    ],
)
def test_hostile_or_disordered_members_are_refused(members: list[tuple[tarfile.TarInfo, bytes]], fault: str) -> None:
    with pytest.raises(ValueError, match=fault) as caught:
        parse_frame(_tar(*members))
    assert "byte " in str(caught.value)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_extended_headers_are_refused_and_not_taken_for_members(form: int) -> None:
    with pytest.raises(ValueError, match="byte 0: expected the tar header of a plain file"):
        parse_frame(_tar(_member("ü" * 120 + ".tokens.npy"), form=form))


def test_a_cut_frame_and_a_misplaced_end_marker_are_refused() -> None:
    raw = _tar(_member("a.tokens.npy"), _member("b.tokens.npy"))
    assert [key for key, _, _ in parse_frame(raw, last=False)] == ["a", "b"]
    assert [key for key, _, _ in parse_frame(raw + END_MARKER, last=True)] == ["a", "b"]
    for cut in range(1, len(raw)):
        if cut != len(raw) // 2:
            with pytest.raises(ValueError, match="byte "):
                parse_frame(raw[:cut])
    for damaged, last in ((raw, True), (raw + END_MARKER, False), (raw + END_MARKER + END_MARKER, None)):
        with pytest.raises(ValueError, match="byte "):
            parse_frame(damaged, last=last)


def _index(data: bytes, raw_bytes: int) -> FrameIndex:
    shard = encode_shard([Document("a", np.array([1, 2]))], "train-00000", token_dtype="uint16")
    return replace(
        shard.index,
        compressed_bytes=np.array([len(data)]),
        raw_bytes=np.array([raw_bytes]),
        checksum=np.array([xxhash.xxh3_64_intdigest(data)], np.uint64),
    )


def _hostile_frames() -> dict[str, tuple[bytes, int]]:
    checked = zstandard.ZstdCompressor(write_checksum=True)
    raw = bytes(2_000)
    frame = checked.compress(raw)
    unsized = checked.compressobj()
    return {
        "the zstd header says 2000": (frame, 3_000),
        "the zstd header says 4000000000": (_claiming(4_000_000_000), 2_000),
        "no header at all": (b"not a zstd frame", 2_000),
        "two frames": (frame + frame, 2_000),
        "junk behind": (frame + b"junk", 2_000),
        "cut": (frame[:-3], 2_000),
        "no content checksum": (zstandard.ZstdCompressor().compress(raw), 2_000),
        "no content size": (unsized.compress(raw) + unsized.flush(), 2_000),
        "an empty frame before": (checked.compress(b"") + frame, 2_000),
    }


def _claiming(size: int) -> bytes:
    """A small frame whose header promises `size` bytes."""
    return struct.pack("<IBQ", 0xFD2FB528, 0b11100100, size) + b"\x01\x00\x00" + bytes(4)


@pytest.mark.parametrize("case", _hostile_frames())
def test_no_frame_unpacks_to_anything_but_what_the_index_promises(case: str) -> None:
    data, raw_bytes = _hostile_frames()[case]
    with pytest.raises(ShardCorruptError) as caught:
        decode_frame(data, 0, _index(data, raw_bytes), "zstd", WHERE)
    assert str(caught.value).startswith(f"{WHERE}: frame 0 at bytes 0 to {len(data)} is damaged: expected")
    assert (caught.value.source, caught.value.path) == ("s3://bucket/web", "train-00000.tar.zst")
    frame = encode_frame([Document("a", np.arange(40, dtype=np.uint16))], codec_for("zstd"), last=True)
    sound = StoredFrame(frame.data, 0, _index(frame.data, frame.raw_bytes), "zstd", WHERE)
    assert decode_frames([sound, sound]) == [sound.decoded()] * 2
    with pytest.raises(ShardCorruptError) as among_others:
        decode_frames([sound, StoredFrame(data, 0, _index(data, raw_bytes), "zstd", WHERE), sound])
    assert str(among_others.value) == str(caught.value)


def test_every_flipped_bit_and_every_cut_of_a_frame_is_an_error() -> None:
    frame = encode_frame([Document("a", np.arange(40, dtype=np.uint16))], codec_for("zstd"), last=True)
    index = _index(frame.data, frame.raw_bytes)
    assert decode_frame(frame.data, 0, index, "zstd", WHERE)
    for bit in range(8 * len(frame.data)):
        damaged = bytearray(frame.data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ShardCorruptError, match="checksum"):
            decode_frame(bytes(damaged), 0, index, "zstd", WHERE)
    for cut in range(len(frame.data)):
        with pytest.raises(ShardCorruptError, match="short read: expected"):
            decode_frame(frame.data[:cut], 0, index, "zstd", WHERE)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="compression must be 'zstd' or 'none', but got 'lz4'"):
        codec_for("lz4")  # type: ignore[arg-type]
