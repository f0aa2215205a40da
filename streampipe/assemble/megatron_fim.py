"""Fill-in-the-middle as Megatron-LM's `GPTFIMDataset` does it, to reproduce a recipe of it: windows in, windows out.

It works on a window of ids after packing, not on documents, keeps the window's length by cutting its end or filling it
with a pad, and drops end-of-document tokens of empty segments. Nothing of that is in the default mode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from streampipe.assemble.fim_cuts import Counts


class Draws(Protocol):
    """The random choices, in the order in which Megatron asks for them."""

    def hit(self, rate: float) -> bool:
        """Return whether a coin falls to a rate."""

    def two(self, most: int) -> tuple[int, int]:
        """Return two places within 0 and `most`, in any order."""


class Codec(Protocol):
    """Megatron's tokenizer: `decode` leaves special tokens out, `encode` adds what it adds to every text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""


@dataclass(frozen=True)
class MegatronFim:
    """Megatron's `--fim-*` options, tokens as ids.

    Attributes:
        prefix, middle, suffix, pad, eod: the extra tokens.
        rate: `fim_rate`, of segments between end-of-document tokens.
        spm_rate: share of `PRE SUF suffix MID prefix middle`.
        split: `fim_split_sample`, which parts a segment into fragments.
        fragment_rate: `fim_fragment_rate`, of the fragments of a segment that is hit.
        no_prefix: `fim_no_prefix`; "" exempts everything.
    """

    prefix: int
    middle: int
    suffix: int
    pad: int
    eod: int
    rate: float = 0.5
    spm_rate: float = 0.5
    split: int | None = None
    fragment_rate: float = 0.5
    no_prefix: str | None = None

    def window(
        self, ids: Sequence[int], draws: Draws, codec: Codec, tally: Callable[[int], Counts] | None = None
    ) -> list[int]:
        """Return a window as Megatron would give it, as long as it was.

        Args:
            ids: of the window, `seq_length` + 1 of them.
            draws: the choices.
            codec: the tokenizer.
            tally: gives where to count what is done to the segment that begins at a place of the window; its pieces are
                segments, or fragments of them.
        """
        tools = draws, codec
        *closed, last = _split(ids, self.eod)
        made: list[int] = []
        begin = 0
        for segment in closed:
            if segment:  # an empty segment vanishes together with its end token
                made += [*self._segment(segment, tools, tally(begin) if tally else Counts()), self.eod]
            begin += len(segment) + 1
        made += self._segment(last, tools, tally(begin) if tally else Counts())
        return made[: len(ids)] + [self.pad] * (len(ids) - len(made))

    def _segment(self, ids: list[int], tools: tuple[Draws, Codec], counts: Counts) -> list[int]:
        if self.split is None or self.split not in ids:
            return self._permuted(ids, self.rate, tools, counts)
        *closed, last = _split(ids, self.split)
        fragments = [fragment for fragment in closed if fragment]
        if not tools[0].hit(self.rate):
            counts.pieces += len(fragments) + 1
            return ids
        made: list[int] = []
        for fragment in fragments:
            made += [*self._permuted(fragment, self.fragment_rate, tools, counts), self.split]
        return made + self._permuted(last, self.fragment_rate, tools, counts)

    def _permuted(self, ids: list[int], rate: float, tools: tuple[Draws, Codec], counts: Counts) -> list[int]:
        draws, codec = tools
        counts.pieces += 1
        if not draws.hit(rate):
            return ids
        text = codec.decode(ids)
        if self.no_prefix is not None and text.startswith(self.no_prefix):
            counts.exempt += 1
            return ids
        one, other = sorted(draws.two(len(text)))
        prefix, middle, suffix = (codec.encode(part) for part in (text[:one], text[one:other], text[other:]))
        counts.transformed += 1
        counts.whole += 1
        if draws.hit(self.spm_rate):
            counts.spm += 1
            return [self.prefix, self.suffix, *suffix, self.middle, *prefix, *middle]
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle, *middle]


def _split(ids: Sequence[int], at: int) -> list[list[int]]:
    """Split at an id: 1 0 2 at 0 gives [1] [2], and 0 gives two empty lists."""
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == at:
            parts.append([])
        else:
            parts[-1].append(int(token))
    return parts
