"""Documents as bytes, while they wait on disk for their place in a shard."""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampipe.shards import AnyDocument, Document, Kind, Pair, TokenDtype, Trained, as_stored

_SIZE = np.dtype("<i8")
_ARRAYS: dict[Kind, int] = {"text": 1, "conversation": 2, "preference": 4}


def encode_payload(document: AnyDocument, token_dtype: TokenDtype) -> bytes:
    """Return the sizes in bytes of a document's arrays, the arrays, then what else there is as JSON.

    Raises:
        ValueError: if the document is outside the format.
    """
    stored: dict[int, str] = {1: token_dtype, 2: "int32"}
    if any(array.dtype != stored[array.ndim] for array in document.arrays()):
        document = as_stored(document, token_dtype)
    arrays = [array.tobytes() for array in document.arrays()]
    sizes = np.array([len(array) for array in arrays], _SIZE)
    meta = b"" if document.meta is None else msgspec.json.encode(document.meta)
    return b"".join((sizes.tobytes(), *arrays, meta))


@dataclass(frozen=True, slots=True)
class PayloadDecoder:
    """Turns bytes back into documents of one kind.

    Attributes:
        kind: of the source.
        token_dtype: of the ids.
        separator: the token between the parts of texts, whose places are then known; None for none.
    """

    kind: Kind
    token_dtype: TokenDtype
    separator: int | None = None

    def decode(self, data: memoryview, key: str, origin: tuple[int, int]) -> AnyDocument:
        """Return the document with the name and origin (file, row) that it is to have."""
        count = _ARRAYS[self.kind]
        at = count * _SIZE.itemsize
        arrays: list[NDArray[Any]] = []
        for i, size in enumerate(np.frombuffer(data, _SIZE, count).tolist()):
            part = data[at : at + size]
            is_loss = i % 2 == 1
            arrays.append(np.frombuffer(part, "<i4").reshape(-1, 2) if is_loss else self._ids(part))
            at += size
        meta = msgspec.json.decode(data[at:]) if at < len(data) else None
        if self.kind == "preference":
            return Pair(key, Trained(*arrays[:2]), Trained(*arrays[2:]), *origin, meta)
        fragments = None if self.separator is None else np.flatnonzero(arrays[0] == self.separator)
        return Document(key, arrays[0], arrays[1] if self.kind == "conversation" else None, *origin, meta, fragments)

    def _ids(self, part: memoryview) -> NDArray[Any]:
        return np.frombuffer(part, np.dtype(self.token_dtype).newbyteorder("<"))
