"""Documents for people at a terminal: what is trained is green, what is not is grey, control tokens stand out."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from shardtools.looking.decoder import Decoder
from shardtools.looking.documents import Member, StoredDocument
from shardtools.looking.segments import Segment, segments, visible

STYLES = {
    ("text", True): "green",
    ("text", False): "bright_black",
    ("special", True): "black on green",
    ("special", False): "black on bright_black",
    ("role", True): "bold cyan",
    ("role", False): "bold cyan",
    ("unknown", True): "bold white on red",
    ("unknown", False): "bold white on red",
}
FOUND = "reverse"


def show_document(
    console: Console, decoder: Decoder, stored: StoredDocument, origin: str, *, most: int, found: str = ""
) -> None:
    """Print one document in a frame."""
    parts: list[RenderableType] = []
    for member in stored.members:
        if member.name:
            parts.append(Rule(f"{member.name}: {in_words(member)}", style="yellow", align="left"))
        parts.append(_body(segments(decoder, member, most), found))
        if len(member.tokens) > most:
            parts.append(Text(f"… {len(member.tokens) - most:,} more tokens (--tokens)", style="italic"))
    count = in_words(stored.members[0]) if len(stored.members) == 1 else "pair"
    title = Text.assemble((f"document {stored.number:,}", "bold"), f"  {count}")
    below = Text(", ".join(part for part in (place_of(stored), visible(origin)) if part))
    console.print(
        Panel(Group(*parts), title=title, subtitle=below, title_align="left", subtitle_align="right"), highlight=False
    )


def place_of(stored: StoredDocument) -> str:
    """Return where a document is in its source."""
    return f"{stored.shard} frame {stored.frame}, key {stored.key}"


def in_words(member: Member) -> str:
    """Return how many tokens there are and how many of them are trained."""
    count, trained = len(member.tokens), member.trained()
    return f"{count:,} tokens" + ("" if member.loss is None else f", {trained:,} trained ({trained / count:.0%})")


def _body(parts: Sequence[Segment], found: str) -> Text:
    """Return the text, with an arrow at each line end, so that it is seen whether that is trained."""
    body = Text()
    for part in parts:
        body.append(part.text.replace("\n", "↵\n"), STYLES[part.sort, part.trained])
    if found:
        body.highlight_words([visible(found).replace("\n", "↵\n")], FOUND)
    return body


def legend() -> Text:
    """Return what the colours mean."""
    return Text.assemble(
        ("trained", STYLES["text", True]),
        "  ",
        ("not trained", STYLES["text", False]),
        "  ",
        ("<control token, trained>", STYLES["special", True]),
        "  ",
        ("<control token>", STYLES["special", False]),
        "  ",
        ("role", STYLES["role", False]),
    )
