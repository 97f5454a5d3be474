"""A workload's result as a table in Markdown, for a terminal and for a page alike."""

from collections.abc import Mapping, Sequence

from benchmarks.peers.scores import Metric, Score, Spread, ratios, spread


def table(
    scores: Mapping[str, Sequence[Score]], metrics: Sequence[Metric], *, base: str, less: bool, notes: Mapping[str, str]
) -> list[str]:
    """The lines: a row for each label of `scores`, its ratio in the first metric to `base`, its medians, its note.

    `less` says that the lower ratio is the better.
    """
    better = ", less is better" if less else ""
    heads = ["system", f"to {base}{better}: median (lowest to highest)", *(metric.head for metric in metrics)]
    heads += ["job isolated"] if notes else []
    rows = []
    for label, played in scores.items():
        compared = ratios(played, scores.get(base, ()), metrics[0].key)
        row = [label, _ratio(Spread.of(compared)) if compared else "–"]
        row += [_figure(spread(played, metric.key), metric) for metric in metrics]
        rows.append(row + ([notes.get(label, "")] if notes else []))
    return [_line(heads), _line(["---"] * len(heads)), *map(_line, rows)]


def summary(ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The lines of a table of median ratios: a row for each workload, a column for each system that is in any."""
    systems = list(dict.fromkeys(system for found in ratios.values() for system in found))
    rows = [
        [workload, *(f"{found[system]:.2f}" if system in found else "–" for system in systems)]
        for workload, found in ratios.items()
    ]
    heads = ["median ratio", *systems]
    return [_line(heads), _line(["---"] * len(heads)), *map(_line, rows)]


def _ratio(ratio: Spread) -> str:
    return f"**{ratio.median:.2f}** ({ratio.lowest:.2f} to {ratio.highest:.2f})"


def _figure(found: Spread | None, metric: Metric) -> str:
    return "–" if found is None else f"{found.median:,.{metric.digits}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
