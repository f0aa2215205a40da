"""How many sequences each step takes: a number, a ramp, or a number of tokens."""

from collections.abc import Sequence

from streampipe.assemble.batch_config import BatchConfig, RampStage
from streampipe.errors import ConfigError
from streampipe.token_count import parse_tokens

_WHERE = "$.batch.global_batch_size"


class StepSize:
    """The size of each step. It only cuts the canonical order; it never changes it.

    Args:
        stages: at least one, in order; the last whose condition holds decides.
        tokens: instead, positions of a step, so that a longer `seq_length` keeps the tokens of a step.

    Raises:
        ConfigError: for a stage whose `tokens` are no number.
    """

    def __init__(self, stages: Sequence[RampStage], tokens: int | None = None) -> None:
        self.stages = tuple(stages)
        self.tokens = tokens
        self._after = [
            0 if stage.tokens is None else parse_tokens(stage.tokens, f"{_WHERE}[{number}].tokens")
            for number, stage in enumerate(stages)
        ]

    def at(self, step: int, tokens: int, seq_length: int) -> int:
        """Return the size of a step that begins after `tokens` tokens and has sequences of `seq_length`."""
        if self.tokens is not None:
            return self.tokens // seq_length
        size = self.stages[0].size
        for stage, after in zip(self.stages, self._after, strict=True):
            if tokens >= after and step >= (stage.steps or 0):
                size = stage.size
        return size

    def sizes(self, seq_lengths: Sequence[int]) -> list[int]:
        """Return every size that a step may have."""
        if self.tokens is not None:
            return [self.tokens // seq_length for seq_length in seq_lengths]
        return [stage.size for stage in self.stages]

    def check(self, seq_lengths: Sequence[int]) -> None:
        """Raise ConfigError for sizes that cannot be."""
        if self.tokens is not None:
            for seq_length in seq_lengths:
                if self.tokens < seq_length or self.tokens % seq_length:
                    raise ConfigError(
                        f"$.batch.global_batch_tokens: must be a multiple of every seq_length, but {self.tokens} is "
                        "none of "
                        f"{seq_length}"
                    )
            return
        if not self.stages:
            raise ConfigError(f"{_WHERE}: a schedule needs at least one stage, such as {{size: 64}}")
        for number, stage in enumerate(self.stages):
            if stage.size < 1:
                raise ConfigError(f"{_WHERE}[{number}].size: must be at least 1, but got {stage.size}")
            if stage.tokens is not None and stage.steps is not None:
                raise ConfigError(f"{_WHERE}[{number}]: give `tokens` or `steps`, not both")
        if self._after[0] or self.stages[0].steps:
            raise ConfigError(f"{_WHERE}[0]: the first stage begins at 0; leave out its `tokens` or `steps`")


def step_size(batch: BatchConfig) -> StepSize:
    """Return the sizes that a config asks for."""
    given = batch.global_batch_size
    stages = [RampStage(given)] if isinstance(given, int) else given
    return StepSize(stages, batch.global_batch_tokens)
