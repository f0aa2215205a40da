"""Move a cursor past steps without reading a token."""

from streampipe.config import StreamConfig
from streampipe.cursor import Cursor
from streampipe.errors import ConfigError, CursorMismatchError
from streampipe.plan.schedule import Place, Schedule
from streampipe.stream import open_stream
from streampipe.tools.rounds import Rounds, in_order


def skip_steps(config: StreamConfig, cursor: Cursor, steps: int, processes: int | None = None) -> Cursor:
    """Return the cursor `steps` steps later; what lies between is planned, over all cores, but not read.

    The cursor says what was skipped. Steps after it are the ones that walking there would have given.

    Args:
        config: the stream.
        cursor: a step border.
        steps: how many to skip.
        processes: 1 plans in this process; None takes a process for each core.

    Raises:
        ConfigError: for less than one step, or more than a finite run has left.
        CursorMismatchError: for a cursor inside a step, or of another stream.
    """
    if steps < 1:
        raise ConfigError(f"steps to skip: must be at least 1, but got {steps}")
    if cursor.within is not None:
        raise CursorMismatchError(
            f"the cursor stands inside step {cursor.step}, after {cursor.within.micro_batches} micro batches; skip "
            "from a "
            f"state that was taken at the end of a step",
            ("within",),
        )
    stream = open_stream(config).resumed(cursor)
    with Rounds(config, cursor, processes=processes) as rounds:
        plan_round = in_order(rounds, stream.planner, lambda _: None)
        schedule = Schedule(stream.planner, stream.place(cursor), plan_round)
        for done in range(steps):
            if schedule.next(stream.size_of_step(schedule.place)) is None:
                raise ConfigError(f"steps to skip: the run ends after {done} more steps, but got {steps}")
    at = schedule.place
    skipped = [*cursor.skipped, [cursor.step, steps]]
    place = Place(at.round, at.offset, at.sequences, at.step, at.counts, at.positions, skipped)
    return stream.cursor(place)
