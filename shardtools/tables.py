"""Statistics for people."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shardtools.looking.segments import visible
from shardtools.looking.spread import Spread
from shardtools.looking.vocabulary import TokenUse
from shardtools.stats import SourceStats

BAR = 36
_EIGHTHS = " ▏▎▍▌▋▊▉"


def show(stats: SourceStats, console: Console | None = None) -> None:
    """Print what a source holds: totals, lengths, how they fill sequences, its vocabulary, how its shards differ."""
    parts: list[RenderableType] = [_totals(stats), _histogram(stats), _padding(stats), _longest(stats)]
    if stats.use:
        parts += [_vocabulary(stats.use), _in_words(stats.use)]
    if stats.spread:
        parts += [
            _spread(stats.spread),
            *(Text(f"warning: {told}", style="bold yellow") for told in stats.spread.warnings),
        ]
    (console or Console()).print(Group(*(row for part in parts for row in (part, Text()))), highlight=False)


def show_sources(found: Sequence[SourceStats], console: Console | None = None) -> None:
    """Print one line for each of several sources."""
    table = _table("sources")
    for name in ("source", "kind", "documents", "tokens", "share", "trained", "mean", "longest"):
        table.add_column(name, justify="left" if name in ("source", "kind") else "right")
    total = sum(stats.tokens for stats in found)
    for stats in found:
        counts = (f"{stats.documents:,}", f"{stats.tokens:,}", f"{stats.tokens / total:.1%}", f"{stats.loss_share:.1%}")
        table.add_row(stats.url, stats.kind, *counts, f"{stats.lengths.mean:,.1f}", f"{stats.lengths.max:,}")
    (console or Console()).print(table, highlight=False)


def _totals(stats: SourceStats) -> Panel:
    table = Table.grid(padding=(0, 3))
    for style in ("bold", "", "bold", ""):
        table.add_column(style=style, justify="right" if style == "" else "left")
    lengths = stats.lengths
    rows = [
        ("documents", f"{stats.documents:,}", "shortest", f"{lengths.min:,}"),
        ("tokens", f"{stats.tokens:,} ({stats.loss_share:.1%} trained)", "mean", f"{lengths.mean:,.1f}"),
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


def _longest(stats: SourceStats) -> Table:
    table = _table("longest documents")
    for name in ("tokens", "split", "document", "from"):
        table.add_column(name, justify="left" if name in ("split", "from") else "right")
    for one in stats.longest:
        table.add_row(f"{one.tokens:,}", one.split, str(one.document), Text(visible(one.origin)))
    return table


def _vocabulary(use: TokenUse) -> Table:
    table = _table("how often ids come" + ("" if use.whole else " (in a sample; --tokens all reads everything)"))
    for name in ("times", "ids", "of the vocabulary", "of the tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("never", f"{use.never_seen:,}", f"{use.never_seen / use.vocabulary:.1%}", "")
    for least, most, ids, share in use.histogram:
        table.add_row(f"{least:,} – {most:,}", f"{ids:,}", f"{ids / use.vocabulary:.1%}", f"{share:.1%}")
    return table


def _in_words(use: TokenUse) -> Text:
    lines = ["most frequent  " + "  ".join(f"{visible(name)!r} {share:.1%}" for _, name, share in use.most_frequent)]
    if use.never_seen_examples:
        lines.append("never seen     " + "  ".join(repr(visible(name)) for _, name in use.never_seen_examples))
    if use.special:
        lines.append("control tokens " + "  ".join(f"{name} {count:,}" for name, count in use.special.items()))
    text = Text("\n".join(lines))
    if use.unknown:
        text.append(f"\nids that the tokenizer does not have: {', '.join(map(str, use.unknown))}", "bold red")
    return text


def _spread(spread: Spread) -> Table:
    table = _table(f"how much {spread.shards:,} shards differ")
    for name in ("", "least", "most", "shards"):
        table.add_column(name, justify="left" if name in ("", "shards") else "right")
    for name, found, digits in (("mean length", spread.mean_length, 1), ("bytes a token", spread.bytes_per_token, 3)):
        shards = f"{found.low_shard}, {found.high_shard}"
        table.add_row(name, f"{found.low:,.{digits}f}", f"{found.high:,.{digits}f}", shards)
    if spread.token_distance is not None and spread.chance_distance is not None:
        table.add_row(
            "tokens not in common", f"{spread.chance_distance:.1%}", f"{spread.token_distance:.1%}", "in one, of two"
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
