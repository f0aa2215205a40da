"""How a build says where it is: a live bar on a terminal, a plain line now and then elsewhere. Always on stderr."""

import sys
import time
from types import TracebackType
from typing import Any, TextIO

PLAIN_SECONDS = 5.0
SLOW_SECONDS = 10.0


class Progress:
    """Shows documents, tokens, tokens per second and the time left.

    Args:
        stream: where to write; stderr when None.
        quiet: show nothing.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._total = 0
        self._started = self._last = 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def note(self, line: str) -> None:
        """Say one thing that is worth a line."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=self._stream, flush=True)

    def start(self, total_tokens: int) -> None:
        """Begin to show the work; `total_tokens` is an estimate."""
        self._total = max(total_tokens, 1)
        self._started = self._last = time.monotonic()
        if not self._quiet and self._stream.isatty():
            self._bar, self._task = _live_bar(self._stream, self._total)

    def update(self, documents: int, tokens: int, slow: list[str]) -> None:
        """Show how far the work is, and which documents take long."""
        if self._quiet:
            return
        now = time.monotonic()
        rate = tokens / max(now - self._started, 1e-9)
        where = f"slow: {slow[0]}" if slow else ""
        if self._bar is not None:
            total = max(self._total, tokens)
            self._bar.update(self._task, completed=tokens, total=total, documents=documents, rate=rate, where=where)
        elif now - self._last >= PLAIN_SECONDS:
            self._last = now
            left = max(self._total - tokens, 0) / rate if rate else 0.0
            share = min(tokens / self._total, 1.0)
            line = f"{share:4.0%}  {documents:,} documents  {tokens:,} tokens  {rate:,.0f} tokens/s  {clock(left)} left"
            self.note(f"{line}  {where}".rstrip())

    def finish(self, documents: int, tokens: int) -> None:
        """Fill the bar: the estimate is known to have ended."""
        if self._bar is not None:
            self._bar.update(self._task, completed=max(tokens, 1), total=max(tokens, 1), documents=documents, where="")


def clock(seconds: float) -> str:
    """Return seconds as 0:05, 12:34 or 1:02:03."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _live_bar(stream: TextIO, total: int) -> tuple[Any, Any]:
    try:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
        from rich.progress import Progress as RichProgress  # noqa: PLC0415
    except ImportError:
        return None, None
    bar = RichProgress(
        TextColumn("[bold]building"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[documents]:,} documents"),
        TextColumn("{task.completed:,.0f} tokens"),
        TextColumn("[cyan]{task.fields[rate]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        TextColumn("[yellow]{task.fields[where]}"),
        console=Console(file=stream),
    )
    bar.start()
    return bar, bar.add_task("build", total=total, documents=0, rate=0.0, where="")
