"""What a mock source is asked to be: lengths of documents, and what their tokens are."""

import statistics
from math import exp, inf, log
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampipe.errors import ConfigError

SHARD_TOKENS = 2**26
_QUANTILES = 2**14


class MockConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lengths to draw, with Megatron's meaning.

    `x ~ exp(N(ln(mean) - sigma²/2, sigma²))`, clipped to `[min, max]` and truncated to an integer; so `mean` is the
    mean before clipping.

    Attributes:
        documents: about how many; exact is the number of tokens.
        mean, sigma, min, max: of the distribution; lengths in tokens.
        lengths: a text file with one length a line (all lines count, there is no header), drawn from instead of a
            distribution.
        tokens_from: folder of a real source whose documents are cut to mock lengths; else tokens are made up.
        vocab_size: ids are below it.
        fragments_at: id of a token that stands between the parts of documents, such as the files of a repository, as
            `shardtools build --fragments-at` records it; only with tokens that are made up.
        fragment_mean: tokens from one of them to the next, in the mean.
    """

    documents: int = 1_000_000
    mean: float = 1000.0
    sigma: float = 1.2
    min: int = 1
    max: int = 65_536
    lengths: str | None = None
    tokens_from: str | None = None
    vocab_size: int = 32_000
    fragments_at: int | None = None
    fragment_mean: int = 500

    def check(self, where: str) -> None:
        """Raise ConfigError for numbers that give no lengths."""
        if self.documents < 1:
            raise ConfigError(f"{where}.documents: must be at least 1, but got {self.documents}")
        if not 1 <= self.min <= self.max <= SHARD_TOKENS:
            raise ConfigError(
                f"{where}: need 1 <= min <= max <= {SHARD_TOKENS}, but got min {self.min}, max {self.max}"
            )
        if not (0 < self.mean < inf and 0 <= self.sigma < inf):
            raise ConfigError(f"{where}: need mean > 0 and sigma >= 0, but got mean {self.mean}, sigma {self.sigma}")
        if not 1 <= self.vocab_size <= 2**31:
            raise ConfigError(f"{where}.vocab_size: must be within 1 and 2^31, but got {self.vocab_size}")
        if self.fragments_at is not None:
            if self.tokens_from is not None:
                raise ConfigError(
                    f"{where}.fragments_at: borrowed tokens have separators where they have them; leave out either "
                    "`fragments_at` or `tokens_from`"
                )
            if not 0 <= self.fragments_at < self.vocab_size or self.vocab_size == 1:
                raise ConfigError(
                    f"{where}.fragments_at: must be an id below vocab_size ({self.vocab_size}), and not the only one, "
                    f"but got {self.fragments_at}"
                )
        self._check_unused(where)
        if not 1 <= self.fragment_mean <= SHARD_TOKENS:
            raise ConfigError(
                f"{where}.fragment_mean: must be within 1 and {SHARD_TOKENS} tokens, but got {self.fragment_mean}"
            )

    def _check_unused(self, where: str) -> None:
        plain = MockConfig()
        for keys, ignored, given in (
            (("mean", "sigma", "min", "max"), self.lengths is not None, "lengths come from the file of `lengths`"),
            (("vocab_size",), self.tokens_from is not None, "tokens come from the source of `tokens_from`"),
            (("fragment_mean",), self.fragments_at is None, "there are no fragments without `fragments_at`"),
        ):
            for key in keys:
                if ignored and getattr(self, key) != getattr(plain, key):
                    raise ConfigError(f"{where}.{key}: decides nothing, since {given}; remove it")

    def quantiles(self) -> NDArray[np.int64]:
        """Return the lengths to draw from, each as likely as another: int64 [quantiles].

        Raises:
            ConfigError: when the file of lengths cannot be read.
        """
        if self.lengths is not None:
            return _lengths_in(self.lengths)
        normal = statistics.NormalDist(log(self.mean) - self.sigma**2 / 2, self.sigma) if self.sigma else None
        drawn = [exp(normal.inv_cdf((i + 0.5) / _QUANTILES)) if normal else self.mean for i in range(_QUANTILES)]
        lengths: NDArray[np.int64] = np.clip(np.array(drawn), self.min, self.max).astype(np.int64)
        return lengths


def _lengths_in(path: str) -> NDArray[np.int64]:
    try:
        lengths = np.array([int(line) for line in Path(path).read_text().split()], np.int64)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: a file of mock lengths has one positive integer a line, but: {error}") from error
    if not len(lengths) or lengths.min() < 1 or lengths.max() > SHARD_TOKENS:
        raise ConfigError(
            f"{path}: mock lengths must be within 1 and {SHARD_TOKENS}, and there must be one; got {len(lengths)} "
            "numbers"
        )
    return lengths
