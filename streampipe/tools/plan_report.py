"""A simulated run for people: lines at a terminal, or one self-contained page."""

import html
from collections.abc import Sequence

from streampipe.tools.simulate import Simulation

_COLOURS = [
    "#4269d0",
    "#efb118",
    "#ff725c",
    "#6cc5b0",
    "#3ca951",
    "#ff8ab7",
    "#a463f2",
    "#97bbf5",
    "#9c6b4e",
    "#9498a0",
]


def lines(found: Simulation) -> list[str]:
    """Return a report as lines of text."""
    told = [f"{name:<26} {value}" for name, value in _facts(found)]
    told += ["", f"{'source':<24} {'tokens':>18} {'documents':>14} {'epochs':>8} {'share':>8} {'lost tokens':>14}"]
    for source in found.sources:
        lost = source["truncated_tokens"] + source["dropped_tokens"]
        told.append(
            f"{source['name']:<24} {source['tokens']:>18,} {source['documents']:>14,} {source['epochs']:>8.2f} "
            f"{source['share']:>8.2%} {lost:>14,}"
        )
    return told + ([""] + [f"warning: {warning}" for warning in found.warnings] if found.warnings else [])


def page(found: Simulation, title: str) -> str:
    """Return a report as one HTML page, without anything from elsewhere."""
    facts = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in _facts(found))
    rows = "".join(
        f'<tr><th><i style="background:{_colour(n)}"></i>{html.escape(s["name"])}</th><td>{s["tokens"]:,}</td>'
        f"<td>{s['documents']:,}</td><td>{s['epochs']:.2f}</td><td>{s['share']:.2%}</td>"
        f"<td>{s['truncated_tokens']:,}</td><td>{s['dropped_tokens']:,}</td></tr>"
        for n, s in enumerate(found.sources)
    )
    warnings = "".join(f"<p class=warning>{html.escape(warning)}</p>" for warning in found.warnings)
    names = [source["name"] for source in found.sources]
    steps = [point["step"] for point in found.history]
    shares = [[point["sources"][n]["share"] for point in found.history] for n in range(len(names))]
    epochs = [[point["sources"][n]["epochs"] for point in found.history] for n in range(len(names))]
    padding = [[point["padding"] for point in found.history]]
    charts = "".join(
        f"<figure><figcaption>{html.escape(caption)}</figcaption>{_chart(steps, series, percent)}</figure>"
        for caption, series, percent in (
            ("share of tokens so far", shares, True),
            ("epochs of each source", epochs, False),
            ("padding so far", padding, True),
        )
    )
    head = "<th>source<th>tokens<th>documents<th>epochs<th>share<th>truncated tokens<th>dropped tokens"
    return (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{warnings}<table>{facts}</table>"
        f"<table class=numbers><tr>{head}</tr>{rows}</table>{charts}"
    )


def _facts(found: Simulation) -> list[tuple[str, str]]:
    padding = 1 - found.tokens / found.positions if found.positions else 0.0
    lockstep = found.imbalance
    return [
        ("steps", f"{found.steps:,}" + (" (the run ends)" if found.ended else "")),
        ("tokens", f"{found.tokens:,}"),
        ("sequences", f"{found.sequences:,}, of them {found.empty_sequences:,} empty"),
        ("padding", f"{padding:.3%}"),
        ("documents", f"{found.documents:,}, of them {found.split:,} split"),
        ("imbalance of a step", f"{found.imbalance['mean']:.3f} on average, {found.imbalance['max']:.3f} at most"),
        ("in lockstep", f"{lockstep['lockstep_mean']:.3f} on average, {lockstep['lockstep_max']:.3f} at most"),
        ("frames", f"{found.frames:,}, read {found.reads / max(1, found.frames):.3f} times over all ranks"),
        ("from storage", f"{found.stored_bytes / 2**30:,.2f} GiB in {found.reads:,} ranges"),
        ("memory of a rank", f"{found.memory_bytes / 2**20:,.0f} MiB at most"),
    ]


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _chart(steps: Sequence[int], series: Sequence[Sequence[float]], percent: bool) -> str:
    """Return lines over steps as SVG, with the ends of both axes written out."""
    if len(steps) < 2:
        return "<p>too few steps for a chart</p>"
    top = max((max(values) for values in series), default=0.0) or 1.0
    width, height, left, bottom = 640, 180, 60, 20
    span = max(1, steps[-1] - steps[0])
    across, down = width - left - 10, height - 10 - bottom
    drawn = []
    for number, values in enumerate(series):
        places = [
            (left + (step - steps[0]) / span * across, 10 + (1 - value / top) * down)
            for step, value in zip(steps, values, strict=True)
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline fill="none" stroke="{_colour(number)}" stroke-width="1.5" points="{points}"/>')
    label = f"{top:.2%}" if percent else f"{top:.2f}"
    floor = height - bottom
    right, end = width - 10, 'text-anchor="end"'
    texts = (
        f'<text x="{left - 6}" y="16" {end}>{label}</text><text x="{left - 6}" y="{floor}" {end}>0</text>',
        f'<text x="{left}" y="{height - 4}">step {steps[0]:,}</text>',
        f'<text x="{right}" y="{height - 4}" {end}>step {steps[-1]:,}</text>',
    )
    axis = f'<path d="M{left},10V{floor}H{right}" class="axis"/>'
    return f'<svg viewBox="0 0 {width} {height}" role="img">{axis}{"".join(texts)}{"".join(drawn)}</svg>'


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:52rem;color:#222;padding:0 1rem}
h1{font-size:1.3rem}table{border-collapse:collapse;margin:1rem 0}th,td{padding:.2rem .8rem;border-bottom:1px solid #ddd}
th{text-align:left;font-weight:500}.numbers td{text-align:right;font-variant-numeric:tabular-nums}
i{display:inline-block;width:.8em;height:.8em;margin-right:.5em;border-radius:2px}
.warning{background:#fff4d6;border-left:4px solid #efb118;padding:.4rem .8rem}
figure{margin:1.5rem 0}figcaption{font-weight:500}svg{width:100%;font-size:11px}.axis{fill:none;stroke:#999}
"""
