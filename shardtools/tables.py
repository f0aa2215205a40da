"""Statistics for people."""

from typing import Any

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shardtools.stats import SourceStats

BAR = 36
_EIGHTHS = " ▏▎▍▌▋▊▉"


def show(stats: SourceStats, console: Console | None = None) -> None:
    """Print what a source holds: totals, lengths, and how they fill sequences."""
    (console or Console()).print(
        Group(_totals(stats), Text(), _histogram(stats), Text(), _padding(stats)), highlight=False
    )


def _totals(stats: SourceStats) -> Panel:
    table = Table.grid(padding=(0, 3))
    for style in ("bold", "", "bold", ""):
        table.add_column(style=style, justify="right" if style == "" else "left")
    lengths = stats.lengths
    rows = [
        ("documents", f"{stats.documents:,}", "shortest", f"{lengths.min:,}"),
        ("tokens", f"{stats.tokens:,}", "mean", f"{lengths.mean:,.1f}"),
        ("shards", f"{stats.shards:,} ({stats.frames:,} frames)", "median", f"{lengths.median:,}"),
        ("on disk", f"{in_bytes(stats.bytes)} + {in_bytes(stats.index_bytes)} index", "99 %", f"{lengths.p99:,}"),
        ("bytes a token", f"{stats.bytes_per_token:.2f} ({stats.token_dtype})", "longest", f"{lengths.max:,}"),
    ]
    for row in rows:
        table.add_row(*row)
    if stats.skipped:
        table.add_row("left out", ", ".join(f"{count:,} {reason}" for reason, count in stats.skipped.items()), "", "")
    title = Text.assemble((stats.url, "bold cyan"), f"  {stats.kind}, {', '.join(stats.splits)}")
    return Panel(table, title=title, title_align="left", box=box.ROUNDED, expand=False, padding=(1, 2))


def _histogram(stats: SourceStats) -> Table:
    table = _table("tokens a document")
    for name in ("tokens", "documents", "share", ""):
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=True)
    most = max(count for _, count in stats.histogram)
    counts = dict(stats.histogram)
    bound, last = stats.histogram[0][0], stats.histogram[-1][0]
    while bound <= last:
        count = counts.get(bound, 0)
        low = bound // 2 + 1
        table.add_row(
            f"{low:,} – {bound:,}" if low < bound else f"{bound:,}",
            f"{count:,}",
            f"{count / stats.documents:.1%}",
            Text(bar(count / most, BAR), style="cyan"),
        )
        bound *= 2
    return table


def _padding(stats: SourceStats) -> Table:
    table = _table("padding forecast")
    for name in ("sequence length", "best_fit", "none", "longer documents"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in stats.padding:
        style = "green" if row.best_fit < 0.01 else "yellow" if row.best_fit < 0.1 else "red"
        table.add_row(
            f"{row.seq_length:,}",
            Text(f"{row.best_fit:.2%}", style=style),
            f"{row.none:.1%}",
            f"{row.split_documents:.1%}",
        )
    return table


def _table(title: str) -> Table:
    shape: dict[str, Any] = {"box": box.SIMPLE_HEAD, "title_justify": "left", "title_style": "bold", "pad_edge": False}
    return Table(title=title, **shape)


def bar(share: float, width: int) -> str:
    """Return a bar of `share` of `width` characters, to the eighth of one; anything above zero is seen."""
    eighths = max(round(share * width * 8), 1) if share > 0 else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def in_bytes(count: int) -> str:
    """Return bytes as people write them: 512 B, 1.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
