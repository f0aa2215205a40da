"""Cursors between the micro batches of one step: what was delivered of it, and whether it is cut as it was."""

from streampipe.cursor import Cursor
from streampipe.errors import CursorMismatchError
from streampipe.parallel import Topology
from streampipe.plan.schedule import Schedule
from streampipe.stream import Stream


def delivered_of_step(cursor: Cursor, stream: Stream, topology: Topology) -> int:
    """Return how many micro batches of the cursor's step have been delivered.

    Raises:
        CursorMismatchError: for a cursor inside a step that was cut otherwise or has become another, or behind the end
            of its step.
    """
    within = cursor.within
    if within is None:
        return 0
    batch = stream.config.batch
    now = {
        "dp_size": topology.dp_size,
        "micro_batch_size": batch.micro_batch_size,
        "global_batch_size": (size := stream.size_of_step(stream.place(cursor))),
    }
    if differing := tuple(name for name, value in now.items() if getattr(within, name) != value):
        listed = "; ".join(
            f"{name}: the cursor has {getattr(within, name)}, this stream {now[name]}" for name in differing
        )
        raise CursorMismatchError(
            f"the cursor stands inside step {cursor.step}, after {within.micro_batches} micro batches of each rank, "
            "and the step was cut otherwise: "
            f"{listed}; resume with the same sizes, or from a state that was taken at the end of a step",
            differing,
        )
    due = topology.check_batch(size, batch.micro_batch_size, batch.batch_by, batch.global_batch_tokens)
    if due is not None:  # else the step tells, once it is planned
        require_in_step(within.micro_batches, due, cursor.step)
    if within.beyond:
        step = Schedule(stream.planner, stream.place(cursor)).next(size)
        if step is None or step.beyond() != within.beyond:
            raise CursorMismatchError(
                f"the cursor stands inside step {cursor.step}, which goes on in the round after, and what that round "
                "gives has changed since: a phase or a source is another there; resume with the config and data of "
                "before, or from a state that was taken at the end of a step",
                ("within",),
            )
    return within.micro_batches


def require_in_step(delivered: int, due: int, step: int) -> None:
    """Refuse a cursor that stands behind the end of its step.

    Raises:
        CursorMismatchError: saying how many micro batches the step has.
    """
    if delivered >= due:
        raise CursorMismatchError(
            f"the cursor says that {delivered} micro batches of step {step} have been delivered, but inside a step it "
            f"can be {due - 1} at most; the cursor is damaged; load a state that state_dict() gave",
            ("within",),
        )
