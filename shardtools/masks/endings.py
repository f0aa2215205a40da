"""How a trained turn ends: its words, the token that ends it, the line break behind."""

import re
from bisect import bisect_left
from collections.abc import Sequence

from shardtools.masks.errors import RenderError, Span, shown
from shardtools.masks.options import RenderOptions


def with_endings(
    text: str, spans: Sequence[Span], control: re.Pattern[str], options: RenderOptions
) -> tuple[str, tuple[Span, ...]]:
    """Return the text and its spans with the endings that the options ask for.

    A span that ends without a control token takes the one that follows at once: some templates end a turn by the next
    role's token. At the end of the text `options.stop` is added.

    Args:
        text: marked.
        spans: turns, as the template or its prefixes give them.
        control: finds unmarked control tokens.
        options: of the build.

    Raises:
        RenderError: `no_terminator`: there is nothing that would teach the model to stop.
    """
    tokens = [match.span() for match in control.finditer(text)]
    starts = [start for start, _ in tokens]
    if options.terminator and options.stop and spans and _terminator(text, spans[-1], tokens, starts) is None:
        start, end = spans[-1]
        if end == len(text):
            text += options.stop
            tokens.append((end, len(text)))
            starts.append(end)
    settled = []
    for start, end in spans:
        found = _terminator(text, (start, end), tokens, starts)
        if found is None and options.terminator:
            raise RenderError(
                "no_terminator",
                "an assistant turn ends without a control token, so the model would not learn to stop; name the token "
                "to put there (--stop TOKEN), or train without a terminator",
                shown(text, [(start, end)]),
            )
        stop = _end(end, found, options)
        if stop > start:
            settled.append((start, stop))
    return text, tuple(settled)


def _terminator(text: str, span: Span, tokens: Sequence[Span], starts: Sequence[int]) -> Span | None:
    """Return the control token that ends a span, with nothing but white space behind it, or follows it at once."""
    start, end = span
    at = bisect_left(starts, end)
    if at and tokens[at - 1][0] >= start and not text[tokens[at - 1][1] : end].strip():
        return tokens[at - 1]
    return tokens[at] if at < len(tokens) and starts[at] == end else None


def _end(end: int, terminator: Span | None, options: RenderOptions) -> int:
    if terminator is None:
        return end
    if not options.terminator:
        return min(end, terminator[0])
    # a line break behind a token that the template did not count to the turn may be the next turn's
    return max(end, terminator[1]) if options.newline else terminator[1]
