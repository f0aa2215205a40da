"""A config, opened: its sources, its plan from a place on, and what makes it this stream and no other."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from streampipe.address import Addressed, address
from streampipe.assemble.fim import SourceFim
from streampipe.assemble.megatron_windows import MegatronWindows
from streampipe.config import StreamConfig
from streampipe.cursor import Cursor, Within
from streampipe.fim_opening import OpenedFim, open_fim
from streampipe.opening import GivenOrder, OpenedSource, open_orders, open_sources
from streampipe.plan.planner import Planner
from streampipe.plan.schedule import COUNTED, Place
from streampipe.resume import plan_run
from streampipe.step_size import step_size

# What a micro batch costs falls until about as many positions are assembled at once: benchmarks/README.md, Reading.
_POSITIONS_AT_ONCE = 2**18


class Stream:
    """An opened config. Sources stand in the order of their names, so the order of the file decides nothing.

    Attributes:
        config: as given.
        sources: opened, those with a weight above 0 in some phase, by name.
        numbers: their positions in `config.sources`.
        planner: of the rounds, from the cursor on.
        step_size: sequences of each step.
        pad_id: stands where no token is.
        stored_dtype: the widest in which a source stores its ids, native; frames of the others are widened when
            decoded.
    """

    def __init__(
        self,
        config: StreamConfig,
        sources: list[OpenedSource],
        numbers: list[int],
        orders: list[GivenOrder | None],
        fim: OpenedFim,
        cursor: Cursor | None = None,
    ) -> None:
        self.config = config
        self.sources = sources
        self.numbers = numbers
        self.step_size = step_size(config.batch)
        self._orders = orders
        self._fim = fim
        self._run = plan_run(config, sources, numbers, orders, fim, cursor)
        self._from_the_start = cursor is None
        self._pasts: tuple[int, Any] = (-1, None)
        self._start: Cursor | None = None
        self._state: dict[str, Any] | None = None  # of some place in the round that was last asked for
        self.stored_dtype: np.dtype[Any] = np.dtype(f"u{max(source.token_dtype.itemsize for source in sources)}")
        tokenizer = sources[0].tokenizer
        self.pad_id = next((i for i in (tokenizer.pad_id, tokenizer.eos_id) if i is not None), 0)

    @property
    def fim_sources(self) -> Mapping[int, SourceFim]:
        """How pieces are transformed, by position in `config.sources`; empty where no source has fill-in-the-middle."""
        return self._fim.sources

    @property
    def fim_windows(self) -> MegatronWindows | None:
        """How windows are transformed, with `compat: megatron`."""
        return self._fim.windows

    @property
    def fim_names(self) -> dict[int, str]:
        """Names of the sources that have fill-in-the-middle, by position in `config.sources`, which is their order."""
        numbers = self._fim.windows.sources if self._fim.windows is not None else self._fim.sources
        return {number: self.config.sources[number].name for number in sorted(numbers)}

    @property
    def changes_tokens(self) -> bool:
        """Whether pieces are changed by what their tokens are, so that each micro batch is made by itself."""
        return self.fim_windows is not None or (bool(self.fim_sources) and self._fim.planned is None)

    def micro_batches_at_once(self, seq_length: int) -> int:
        """Return how many micro batches are assembled at once: of small ones as many as make about 2^18 positions.

        What each call of Python and numpy costs is then shared by them.
        """
        if self.changes_tokens:
            return 1
        return max(1, _POSITIONS_AT_ONCE // (self.config.batch.micro_batch_size * seq_length))

    @property
    def planner(self) -> Planner:
        """Plans the rounds of the run."""
        return self._run.planner

    def resumed(self, cursor: Cursor) -> "Stream":
        """Return the stream that goes on from a cursor.

        Raises:
            CursorMismatchError: when the cursor belongs to another stream.
        """
        return Stream(self.config, self.sources, self.numbers, self._orders, self._fim, cursor)

    def afresh(self) -> "Stream":
        """Return the stream from its beginning."""
        if self._from_the_start:
            return self
        return Stream(self.config, self.sources, self.numbers, self._orders, self._fim)

    def start(self) -> Cursor:
        """Return the cursor of a stream that has given nothing yet."""
        if self._start is None:
            nothing = np.zeros((len(self.sources), len(COUNTED)), np.int64)
            self._start = self.afresh().cursor(Place(0, 0, 0, 0, nothing))
        return self._start

    def ended(self, cursor: Cursor) -> bool:
        """Return whether a finite run has given everything."""
        return self.planner.rounds is not None and cursor.round >= self.planner.rounds

    def place(self, cursor: Cursor) -> Place:
        """Return where a cursor's next step begins."""
        nothing = [0] * len(COUNTED)
        pasts = [cursor.sources.get(source.name) for source in self.sources]
        counts = [[getattr(past, name) for name in COUNTED] if past is not None else nothing for past in pasts]
        table = np.array(counts, np.int64)
        done = (cursor.round, cursor.offset, cursor.sequences, cursor.step)
        return Place(*done, table, cursor.positions, cursor.skipped)

    def size_of_step(self, place: Place) -> int:
        """Return how many sequences the step has that begins at a place."""
        seq_length = self.planner.layout(place.round).seq_length
        tokens = int(place.counts[:, 0].sum()) if len(self.step_size.stages) > 1 else 0
        return self.step_size.at(place.step, tokens, seq_length)

    def cursor(self, place: Place, within: Within | None = None) -> Cursor:
        """Return the cursor of a step border, or of a place within the step that begins there."""
        known = self._pasts  # read once, as in `state`
        if known[0] != place.round:
            known = self._pasts = place.round, self._run.past(place.round)
        stream, pasts, phase, segment = known[1]
        sources = {
            source.name: msgspec.structs.replace(pasts[source.name], **dict(zip(COUNTED, counts, strict=True)))
            for source, counts in zip(self.sources, place.counts.tolist(), strict=True)
        }
        return Cursor(
            stream=stream,
            sources=sources,
            phase=phase,
            segment=segment,
            round=place.round,
            offset=place.offset,
            sequences=place.sequences,
            positions=place.positions,
            step=place.step,
            skipped=place.skipped,
            within=within,
        )

    def state(self, place: Place) -> dict[str, Any]:
        """Return `cursor(place).to_dict()`; inside a round only what changes there is filled in.

        Of a source these are its counts, the last of what `SourcePast` lists.
        """
        known = self._state  # read once: iterators of one stream, each with a thread of its own, share it
        if known is None or known["round"] != place.round:
            known = self._state = self.cursor(place).to_dict()
        heads = known["sources"]
        pasts = zip(self.sources, place.counts.tolist(), strict=True)
        return {
            **known,
            "sources": {source.name: [*heads[source.name][: -len(COUNTED)], *counts] for source, counts in pasts},
            "offset": place.offset,
            "sequences": place.sequences,
            "positions": place.positions,
            "step": place.step,
        }

    def plan_round(self, number: int, breathe: Callable[[], None], first: int) -> Addressed:
        """Plan a round and look up where its pieces lie; `first` is the sequences of the run before it."""
        plan = self.planner.round(number, breathe, first)
        padding = np.full(plan.seq_length, self.pad_id, self.stored_dtype).data
        return address(plan, self.sources, self.numbers, padding, self.config.batch, self._fim.planned)


def open_stream(config: StreamConfig) -> Stream:
    """Open a config.

    Raises:
        SourceError, ConfigError, DocumentTooLongError: as `open_sources` does.
    """
    config.check()
    sources, numbers = open_sources(config)
    return Stream(config, sources, numbers, open_orders(config, sources, numbers), open_fim(config, sources, numbers))
