"""What a build does with documents of more tokens than the user wants."""

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from shardtools.corpus.tally import Tally
from streampipe.errors import ConfigError
from streampipe.shards import AnyDocument, Document


@dataclass(frozen=True)
class Overlong:
    """A rule for long documents; a document's length is that of all its token members together.

    Attributes:
        policy: leave them as they are, cut them, or leave them out.
        limit: the most tokens of a document, but with `keep`.
    """

    policy: Literal["keep", "truncate", "drop"] = "keep"
    limit: int = 0

    @classmethod
    def parse(cls, text: str) -> "Overlong":
        """Read `keep`, `truncate:N` or `drop:N`.

        Raises:
            ConfigError: if it is something else.
        """
        match = re.fullmatch(r"(truncate|drop):([1-9]\d*)", text)
        if match:
            return cls("drop" if match[1] == "drop" else "truncate", int(match[2]))
        if text == "keep":
            return cls()
        raise ConfigError(f"--overlong {text!r}: expected keep, truncate:N or drop:N with N tokens, e.g. drop:131072")

    def apply(self, document: AnyDocument, tally: Tally) -> AnyDocument | None:
        """Return what is left of a document, and count what is not.

        A truncated one loses its end token with its end: it does not end there.

        Raises:
            ConfigError: if a pair would have to be cut.
        """
        if self.policy == "keep":
            return document
        length = sum(len(array) for array in document.arrays() if array.ndim == 1)
        if length <= self.limit:
            return document
        if self.policy == "drop":
            tally.skip("dropped_overlong")
            return None
        if not isinstance(document, Document):
            raise ConfigError("--overlong truncate would leave pairs without an answer; use drop:N")
        loss = document.loss
        if loss is not None:
            loss = np.minimum(loss[loss[:, 0] < self.limit], self.limit)
            if not len(loss):
                tally.skip("truncated_untrained")
                return None
        tally.reasons["truncated"] += 1
        tally.reasons["truncated_tokens"] += length - self.limit
        return replace(document, tokens=document.tokens[: self.limit], loss=loss)
