"""Fill-in-the-middle of a source: how often, where texts are cut, and in which order the parts then stand."""

from typing import Literal

import msgspec

from streampipe.errors import ConfigError

Level = Literal["character", "token", "line"]
Template = list[str | int]
_PARTS = ("prefix", "suffix", "middle")


class Sentinels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tokens that stand before the parts, each by its name in the tokenizer or by its id.

    Attributes:
        prefix, suffix: of these parts.
        middle: of this part; null for models without one.
    """

    prefix: str | int
    suffix: str | int
    middle: str | int | None = None


class FimConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fill-in-the-middle of a source.

    Each document that is hit is cut at two places into prefix, middle and suffix, which then stand in another order,
    with sentinels between them. Where and whether depends on the seed, the source, the epoch and the document only.

    Attributes:
        rate: share of documents (pieces, where long ones are split) that are transformed, 0 to 1.
        sentinels: a preset by name, or the tokens.
        spm_rate: share of these that put the suffix first, 0 to 1.
        level: places to cut at: between any two characters, between tokens as they are stored, or at starts of lines.
        psm, spm: the two orders; `psm`, `spm` (`PRE SUF suffix MID prefix middle`), `spmv1` (`SUF suffix PRE prefix MID
            middle`), or a list of `PRE`, `SUF`, `MID`, `prefix`, `suffix`, `middle`, ids, and any other text; null for
            the preset's, else `psm` and `spm`. The middle comes last.
        min_length: texts of fewer tokens are left alone.
        no_prefix: texts that begin so are left alone.
        loss: on all parts, or on the middle (and the end token) only.
        slack: tokens that cutting inside tokens may add to a document; what needs more is cut elsewhere.
        split_on: the token that separates the parts of a document, as `shardtools build --fragments-at` recorded it:
            documents that are hit and have it are transformed part by part, and it stays where it was.
        fragment_rate: share of these parts that are transformed, 0 to 1; null for `rate`.
    """

    rate: float
    sentinels: str | Sentinels
    spm_rate: float = 0.5
    level: Level = "character"
    psm: Literal["psm"] | Template | None = None
    spm: Literal["spm", "spmv1"] | Template | None = None
    min_length: int = 1
    no_prefix: str | None = None
    loss: Literal["all", "middle"] = "all"
    slack: int = 4
    split_on: str | None = None
    fragment_rate: float | None = None

    @property
    def rate_of_fragments(self) -> float | None:
        """Share of the parts of a document that are transformed; None where documents are not split."""
        return None if self.split_on is None else self.rate if self.fragment_rate is None else self.fragment_rate

    @property
    def needs_text(self) -> bool:
        """Whether the source's tokenizer must be at hand when batches are made."""
        return self.level != "token" or self.no_prefix is not None

    def check(self, where: str) -> None:
        """Refuse what has no meaning.

        Raises:
            ConfigError: with the path of the key.
        """
        for name in ("rate", "spm_rate", "fragment_rate"):
            if not 0 <= (getattr(self, name) or 0) <= 1:
                raise ConfigError(f"{where}.{name}: must be within 0 and 1, but got {getattr(self, name)}")
        if self.fragment_rate is not None and self.split_on is None:
            raise ConfigError(f"{where}.fragment_rate: has a meaning with split_on only; give that, or leave it out")
        if self.split_on == "":
            raise ConfigError(f"{where}.split_on: names no token; give one, such as <file_sep>, or leave the key out")
        if self.min_length < 0:
            raise ConfigError(f"{where}.min_length: must be at least 0 tokens, but got {self.min_length}")
        if not 0 <= self.slack <= 64:
            raise ConfigError(f"{where}.slack: must be within 0 and 64 tokens, but got {self.slack}")
        if self.no_prefix == "":
            raise ConfigError(f"{where}.no_prefix: every text begins with nothing; leave the key out, or set rate: 0")
        if self.loss == "middle" and self.needs_text:
            raise ConfigError(
                f"{where}.loss: how many tokens of a middle are trained must be known before texts are, which "
                f"{'no_prefix' if self.level == 'token' else f'level: {self.level}'} does not allow; use level: token "
                "without no_prefix, or loss: all"
            )
        for name in ("psm", "spm"):
            _check_template(getattr(self, name), f"{where}.{name}")


def _check_template(template: str | Template | None, where: str) -> None:
    if not isinstance(template, list):
        return
    found = [item for item in template if item in _PARTS]
    if sorted(found) != sorted(_PARTS) or template[-1] != "middle" or template[0] in _PARTS:
        raise ConfigError(
            f"{where}: a template begins with a sentinel or a text, has prefix, suffix and middle once each, and ends "
            f"with middle, but got {template}; for example [PRE, prefix, SUF, suffix, MID, middle]"
        )
