"""Fill-in-the-middle of a source: how often, where texts are cut, and in which order the parts then stand."""

from collections.abc import Sequence
from typing import Any, Literal

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
        pad: fills windows up with `compat: megatron`, and stands nowhere else.
    """

    prefix: str | int
    suffix: str | int
    middle: str | int | None = None
    pad: str | int | None = None


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
            Of a mock source, the id that its `fragments_at` has.
            With `compat`, the token (or id) that parts a text into fragments.
        fragment_rate: share of these parts that are transformed, 0 to 1; null for `rate`.
        compat: `megatron` does as Megatron-LM's `GPTFIMDataset` does, to reproduce a recipe of it: windows after
            packing instead of documents, with no other key than the rates, `sentinels`, `no_prefix`, `split_on` and
            `fragment_rate`.
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
    slack: int = 3
    split_on: str | int | None = None
    fragment_rate: float | None = None
    compat: Literal["megatron"] | None = None

    @property
    def rate_of_fragments(self) -> float | None:
        """Share of the parts of a document that are transformed; None where documents are not split."""
        return None if self.split_on is None else self.rate if self.fragment_rate is None else self.fragment_rate

    @property
    def needs_text(self) -> bool:
        """Whether the source's tokenizer must be at hand when batches are made."""
        return self.level != "token" or self.no_prefix is not None

    @property
    def room_for_cuts(self) -> int:
        """Tokens that cuts may add to a document, beside its sentinels: none at token borders."""
        return 0 if self.level == "token" else self.slack

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
        if self.compat is None:
            self._check_own(where)
        else:
            self._check_compat(where)

    def _check_own(self, where: str) -> None:
        if isinstance(self.sentinels, Sentinels) and self.sentinels.pad is not None:
            raise ConfigError(
                f"{where}.sentinels.pad: only `compat: megatron` fills windows up; remove it, or set compat"
            )

    def _check_compat(self, where: str) -> None:
        usual = {field.name: field.default for field in msgspec.structs.fields(FimConfig)}
        for name in ("level", "psm", "spm", "min_length", "loss", "slack"):
            if getattr(self, name) != usual[name]:
                raise ConfigError(
                    f"{where}.{name}: Megatron has no such choice, so compat: megatron takes {usual[name]!r} only, but "
                    f"got {getattr(self, name)!r}; remove it, or remove compat"
                )
        if self.split_on is not None and self.fragment_rate is None:
            raise ConfigError(f"{where}.split_on: Megatron fails without fragment_rate; give both, or neither")


def check_policy(fims: Sequence[FimConfig | None], packing: Any, fields: Sequence[str]) -> None:
    """Refuse fill-in-the-middle that does not go with how documents are packed, or with the arrays of a batch.

    Args:
        fims: of all sources.
        packing: its `policy` and `overlong` are read.
        fields: of the batch.

    Raises:
        ConfigError: with the path of the key.
    """
    for number, fim in enumerate(fims):
        if fim is not None and fim.compat is None and packing.policy == "concat":
            raise ConfigError(
                f"$.sources[{number}].fim: documents are transformed whole, but packing.policy concat cuts them "
                "anywhere, sentinels from their parts; choose best_fit"
            )
    compat = next((number for number, fim in enumerate(fims) if fim is not None and fim.compat), None)
    if compat is None:
        return
    where = f"$.sources[{compat}].fim"
    if packing.policy != "concat":
        raise ConfigError(
            f"{where}.compat: megatron transforms windows that are cut at every seq_length, but packing.policy is "
            f"{packing.policy}; set packing.policy: concat, or remove compat"
        )
    if packing.overlong == "truncate":
        raise ConfigError(
            "$.packing.overlong: truncate takes end tokens away, which tell the documents of a window apart with "
            f"{where}.compat; choose split"
        )
    for number, fim in enumerate(fims):
        if fim != fims[compat]:
            raise ConfigError(
                f"$.sources[{number}].fim: differs from {where}, but windows mix sources, and compat: megatron "
                "transforms them whole; give every source the same fim, or each a stream of its own"
            )
    for name in ("fim_parts", "horizon"):
        if name in fields:
            raise ConfigError(
                f"$.batch.fields: {name} tells of parts, which compat: megatron cuts off at the end of windows; remove "
                f"it, or remove {where}.compat"
            )


def _check_template(template: str | Template | None, where: str) -> None:
    if not isinstance(template, list):
        return
    found = [item for item in template if item in _PARTS]
    if sorted(found) != sorted(_PARTS) or template[-1] != "middle" or template[0] in _PARTS:
        raise ConfigError(
            f"{where}: a template begins with a sentinel or a text, has prefix, suffix and middle once each, and ends "
            f"with middle, but got {template}; for example [PRE, prefix, SUF, suffix, MID, middle]"
        )
