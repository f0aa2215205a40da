"""What a batch looks like."""

from typing import Literal

import msgspec

from streampipe.errors import ConfigError

Field = Literal["tokens", "labels", "position_ids", "loss_mask", "padding_mask"]


class RampStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From where on steps have a size.

    Attributes:
        size: sequences of a step over all ranks.
        tokens: from the first step on that begins after this many tokens; or
        steps: from this step on. Neither: from the beginning.
    """

    size: int
    tokens: int | None = None
    steps: int | None = None


class BatchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a batch looks like; nothing of it changes the order of sequences.

    Attributes:
        layout: `thd` lays sequences end to end with `cu_seqlens`; `sbhd` gives one document a row, right-padded.
        global_batch_size: sequences of a step over all ranks; a list of stages for a ramp-up.
        global_batch_tokens: instead, positions of a step: its size follows `seq_length`.
        micro_batch_size: sequences of a batch.
        fields: arrays to make; leave out what the model derives itself.
        labels: `aligned` labels are the target of the token beside them; `unshifted` ones are for models that shift
            themselves.
        token_dtype: of tokens, labels and position_ids.
    """

    layout: Literal["thd", "sbhd"] = "thd"
    global_batch_size: int | list[RampStage] = 1
    global_batch_tokens: int | None = None
    micro_batch_size: int = 1
    fields: tuple[Field, ...] = ("tokens", "labels", "position_ids", "loss_mask")
    labels: Literal["aligned", "unshifted"] = "aligned"
    token_dtype: Literal["int64", "int32"] = "int64"

    def check(self, policy: str) -> None:
        """Raise ConfigError for what has no meaning together."""
        if self.micro_batch_size < 1:
            raise ConfigError(f"$.batch.micro_batch_size: must be at least 1, but got {self.micro_batch_size}")
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
