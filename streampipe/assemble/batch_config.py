"""What a batch looks like."""

from typing import Literal

import msgspec

from streampipe.errors import ConfigError

Field = Literal["tokens", "labels", "position_ids", "loss_mask", "padding_mask", "fim_parts", "horizon"]


class RampStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From where on steps have a size.

    Attributes:
        size: sequences, or documents, of a step over all ranks.
        tokens: from the first step on that begins after this many tokens, an integer or a text such as 10B; or
        steps: from this step on. Neither: from the beginning.
    """

    size: int
    tokens: int | str | None = None
    steps: int | None = None


class BatchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a batch looks like; nothing of it changes the order of sequences, or of documents.

    Attributes:
        layout: `thd` lays sequences end to end with `cu_seqlens`; `sbhd` gives one document a row, right-padded.
        batch_by: what a step counts. `sequences` of the canonical order; or `documents`: a step takes the next
            `global_batch_size` documents (pairs count once) and packs them into as few sequences as they need, so the
            number of micro batches differs from step to step; the batch says it.
        sequence_multiple: with `batch_by: documents`, spread a step's documents over a multiple of so many sequences;
            best dp_size x micro_batch_size of the largest topology, so that no rank gets an empty sequence. It decides
            which documents lie together, so it is kept when the topology changes.
        global_batch_size: sequences, or documents, of a step over all ranks; a list of stages for a ramp-up.
        global_batch_tokens: instead, positions of a step: its size follows `seq_length`.
        micro_batch_size: sequences of a batch.
        fields: arrays to make; leave out what the model derives itself. `fim_parts` tells of each token whether it is
            of a prefix (1), suffix (2), middle (3) or a sentinel (4), `horizon` how many tokens of its middle are left.
        labels: `aligned` labels are the target of the token beside them; `unshifted` ones are for models that shift
            themselves.
        token_dtype: of tokens, labels and position_ids.
    """

    layout: Literal["thd", "sbhd"] = "thd"
    batch_by: Literal["sequences", "documents"] = "sequences"
    sequence_multiple: int = 1
    global_batch_size: int | list[RampStage] = 1
    global_batch_tokens: int | None = None
    micro_batch_size: int = 1
    fields: tuple[Field, ...] = ("tokens", "labels", "position_ids", "loss_mask")
    labels: Literal["aligned", "unshifted"] = "aligned"
    token_dtype: Literal["int64", "int32"] = "int64"

    def check(self, policy: str) -> None:
        """Raise ConfigError for what has no meaning together."""
        for key in ("micro_batch_size", "sequence_multiple"):
            if getattr(self, key) < 1:
                raise ConfigError(f"$.batch.{key}: must be at least 1, but got {getattr(self, key)}")
        if self.batch_by == "documents":
            self._check_documents(policy)
        elif self.sequence_multiple > 1:
            raise ConfigError(
                "$.batch.sequence_multiple: has a meaning with `batch_by: documents` only; set that, or remove it"
            )
        if self.layout == "sbhd" and policy != "none":
            raise ConfigError(
                f"$.batch.layout: sbhd gives one document a row, but packing.policy {policy!r} puts several into a "
                "sequence; "
                f"set packing.policy: none, or batch.layout: thd"
            )
        if "tokens" not in self.fields:
            raise ConfigError("$.batch.fields: tokens cannot be left out")
        if len(set(self.fields)) != len(self.fields):
            raise ConfigError(f"$.batch.fields: a field is listed twice in {self.fields}")

    def _check_documents(self, policy: str) -> None:
        if self.layout != "thd" or policy != "best_fit":
            raise ConfigError(
                "$.batch.batch_by: `documents` packs the documents of a step, which has no meaning with "
                f"layout {self.layout} and packing.policy {policy}; set batch.layout: thd and packing.policy: best_fit"
            )
        if self.global_batch_tokens is not None:
            raise ConfigError(
                "$.batch.global_batch_tokens: counts positions, but batch_by: documents counts documents; set "
                "batch.global_batch_size instead"
            )
