"""What a config says of rounds: how large they are, and how sequences are ordered in them."""

from typing import Literal

import msgspec

from streampipe.errors import ConfigError
from streampipe.plan.balance import default_even_rows


class PlanConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of the planning unit, and the order of sequences in it.

    Attributes:
        windows: localities of a round; at least the largest data-parallel size of the run, best a multiple of it.
        window_tokens: tokens of a window; null for max(2^20, 8 x seq_length), or with `balance: cost` for
            max(2^21, 64 x seq_length), since only windows of many sequences are alike.
        balance: `cost` aligns the sequences of windows by what they cost, so that ranks finish together.
        model_width: of the model that is trained (its hidden size): a token costs 6 x this, beside its attention.
        even_rows: with `balance: cost`, over how many sequences of each window the shares of sources are kept even; a
            power of two, best the number that a step takes. More give better balance where fewer are taken. Null for 4,
            or 16 where attention is most of the cost.
    """

    windows: int = 64
    window_tokens: int | None = None
    balance: Literal["off", "cost"] | bool = "off"
    model_width: int = 4096
    even_rows: int | None = None

    def __post_init__(self) -> None:
        if self.balance is False:  # how YAML reads a bare `off`
            msgspec.structs.force_setattr(self, "balance", "off")

    @property
    def balanced(self) -> bool:
        """Whether sequences are ordered by cost."""
        return self.balance == "cost"

    @property
    def cost_of_token(self) -> int:
        """What a token costs beside its attention, in token pairs."""
        return 6 * self.model_width

    def resolved_even_rows(self, seq_length: int) -> int | None:
        """Return over how many rows shares are kept even; None for random order."""
        if not self.balanced:
            return None
        return self.even_rows or default_even_rows(seq_length, self.cost_of_token)

    def resolved_window_tokens(self, seq_length: int) -> int:
        """Return tokens of a window."""
        if self.window_tokens is not None:
            return self.window_tokens
        return max(2**21, 64 * seq_length) if self.balanced else max(2**20, 8 * seq_length)

    def order_name(self, seq_length: int) -> str:
        """Return what of the config decides the order of sequences, for the cursor."""
        width = "" if self.model_width == PlanConfig().model_width else f"/{self.model_width}"
        return f"cost/{self.resolved_even_rows(seq_length)}{width}" if self.balanced else f"off{width}"

    def check(self) -> None:
        """Raise ConfigError for sizes that have no meaning."""
        if self.windows < 1:
            raise ConfigError(f"$.plan.windows: must be at least 1, but got {self.windows}")
        if self.window_tokens is not None and self.window_tokens < 1:
            raise ConfigError(f"$.plan.window_tokens: must be at least 1, but got {self.window_tokens}")
        if self.balance is True:
            raise ConfigError("$.plan.balance: must be `cost` or `off`, but got true; write balance: cost")
        if self.model_width < 1:
            raise ConfigError(f"$.plan.model_width: must be at least 1, but got {self.model_width}")
        if self.even_rows is None:
            return
        if not self.balanced:
            raise ConfigError("$.plan.even_rows: has a meaning with `balance: cost` only; set that, or remove it")
        if not 1 <= self.even_rows <= 2**16 or self.even_rows & self.even_rows - 1:
            raise ConfigError(
                f"$.plan.even_rows: must be a power of two within 1 and 65536, but got {self.even_rows}; choose about "
                "as many as a step takes sequences of each window"
            )
