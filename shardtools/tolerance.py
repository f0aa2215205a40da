"""How many bad rows a build takes."""

from shardtools.ledger import Seen
from shardtools.options import BuildOptions
from streampipe.errors import SourceError

SHOWN = 5


def refuse_too_many_bad_rows(options: BuildOptions, seen: Seen, *, so_far: bool = False) -> None:
    """Stop a build whose input has more bad rows than the user allows.

    Args:
        options: of the build.
        seen: of the input.
        so_far: not all of the input has been read, so that only a count, not a share, can be too large.

    Raises:
        SourceError: with the counts by reason, and the first such rows.
    """
    cap = options.bad_rows_cap
    bad = {reason: count for reason, count in seen.counts.items() if reason in seen.bad}
    total = sum(bad.values())
    if cap is None or (so_far and cap.fraction is not None) or not cap.exceeded_by(total, seen.rows):
        return
    reasons = ", ".join(f"{count} {reason}" for reason, count in bad.items())
    raise SourceError(
        f"{total} of {seen.rows} rows{' so far' if so_far else ''} cannot be read ({reasons}), which is more than "
        f"--max-bad-rows {options.max_bad_rows}: {'; '.join(seen.examples[:SHOWN])}; mend the input or allow more"
    )
