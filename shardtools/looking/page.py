"""Documents as one page of HTML that needs nothing else: no script, no other file, no network."""

import re
from collections.abc import Iterable, Iterator
from html import escape

from shardtools.looking.decoder import Decoder
from shardtools.looking.documents import Member, StoredDocument
from shardtools.looking.segments import Segment, segments, visible
from shardtools.looking.terminal import in_words, place_of

_CSS = """
:root { color-scheme: light dark; --ground: #fbfbfa; --card: #fff; --ink: #1f2328; --soft: #6e7781; --line: #d9dde2;
  --trained: #d3f2d9; --trained-ink: #0b4a1d; --special: #e7e9ec; --special-trained: #7fd396; --role: #0969da;
  --wrong: #cf222e; --found: #ffe58a; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --card: #1b1f23; --ink: #e6e8ea; --soft: #8b949e;
  --line: #32383f; --trained: #12391d; --trained-ink: #b9f0c6; --special: #30363d; --special-trained: #2a7a3f;
  --role: #6cb6ff; --wrong: #f85149; --found: #6b5500; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
.about, .legend { color: var(--soft); margin: 0 0 1rem; }
.legend span { margin-right: .6rem; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 1rem 0; }
summary { padding: .6rem .9rem; cursor: pointer; overflow-wrap: anywhere; }
summary small { color: var(--soft); margin-left: .5rem; }
h3 { font-size: .9rem; margin: 0; padding: .5rem .9rem; border-top: 1px solid var(--line); }
pre { margin: 0; padding: .8rem .9rem; border-top: 1px solid var(--line); white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.65 ui-monospace, "SFMono-Regular", Menlo, "DejaVu Sans Mono", monospace;
  color: var(--soft); }
.t { background: var(--trained); color: var(--trained-ink); border-radius: 2px; }
.s { background: var(--special); color: var(--ink); border-radius: 4px; padding: 0 3px; }
.s.t { background: var(--special-trained); }
.r { color: var(--role); font-weight: 700; }
.u { background: var(--wrong); color: #fff; }
.k { border-left: 1px solid var(--line); }
mark { background: var(--found); color: inherit; }
.more { font-style: italic; }
"""
_CLASS = {"text": "", "special": "s", "role": "r", "unknown": "u"}
_LEGEND = (
    '<p class="legend"><span class="t">trained</span><span>not trained</span><span class="s t">control token, trained'
    '</span><span class="s">control token</span><span class="r">role</span>lines mark tokens; ↵ is a line end</p>'
)


def page(
    title: str,
    decoder: Decoder,
    stored: Iterable[tuple[StoredDocument, str]],
    *,
    most: int,
    found: str = "",
) -> Iterator[str]:
    """Yield the parts of the page.

    Args:
        title: of the page.
        decoder: of the source.
        stored: the documents, and where each came from.
        most: tokens to show of each member.
        found: a text to mark.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body>\n<h1>{escape(title)}</h1>\n{_LEGEND}\n"
    )
    for one, origin in stored:
        count = in_words(one.members[0]) if len(one.members) == 1 else "pair"
        about = escape(" · ".join(part for part in (count, place_of(one), origin) if part))
        yield f"<details open><summary><b>document {one.number:,}</b><small>{about}</small></summary>\n"
        for member in one.members:
            if member.name:
                yield f"<h3>{escape(member.name)}: {in_words(member)}</h3>\n"
            yield _body(decoder, member, most, found)
        yield "</details>\n"
    yield "</body></html>\n"


def _body(decoder: Decoder, member: Member, most: int, found: str) -> str:
    parts = segments(decoder, member, most, single=True)
    marks = _marks("".join(part.text for part in parts), visible(found)) if found else []
    spans, at = [], 0
    for part in parts:
        spans.append(_span(part, at, marks))
        at += len(part.text)
    left = len(member.tokens) - most
    rest = f'<p class="more">… {left:,} more tokens</p>' if left > 0 else ""
    return f"<pre>{''.join(spans)}</pre>{rest}\n"


def _marks(text: str, found: str) -> list[tuple[int, int]]:
    """Return where a text stands in another: it may reach over several tokens."""
    return [match.span() for match in re.finditer(re.escape(found), text)]


def _span(part: Segment, at: int, marks: list[tuple[int, int]]) -> str:
    classes = " ".join(name for name in (_CLASS[part.sort], "t" if part.trained else "", "k") if name)
    shown, place = "", 0
    for start, end in marks:
        low, high = max(start - at, place), min(end - at, len(part.text))
        if low < high:
            shown += f"{_escaped(part.text[place:low])}<mark>{_escaped(part.text[low:high])}</mark>"
            place = high
    shown += _escaped(part.text[place:])
    return f'<span class="{classes}" title="token {part.first}">{shown}</span>'


def _escaped(text: str) -> str:
    return escape(text).replace("\n", "↵\n")
