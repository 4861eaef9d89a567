"""`python -m zoo.published`: every published row, its protocol, its recipe, and what has been reproduced here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.config.published import PublishedRow, find_published, published_rows


def parser() -> OneLineParser:
    """The flags of `zoo.published`."""
    p = OneLineParser(
        "zoo.published", "Published result rows: figures, protocol, recipe, and what was reproduced here."
    )
    p.add_argument("name", nargs="?", help="a row: all that is known of it")
    return p


def table(rows: Iterable[PublishedRow]) -> list[str]:
    """Return a line for each row, and how many have been reproduced."""
    listed = list(rows)
    width = max(len(row.name) for row in listed)
    lines = [f"{'row':<{width}}  {'actions':<14}  {'recipe':<34}  figures"]
    for row in listed:
        actions = f"sampled at {row.protocol.temperature:g}" if row.protocol.sample else "deterministic"
        recipe = "-" if row.recipe is None else f"{row.recipe.algo} {row.recipe.env} {row.recipe.policy}"
        figures = ", ".join(f"{figure.label} {figure.percent:g}" for figure in row.figures)
        lines.append(f"{row.name:<{width}}  {actions:<14}  {recipe:<34}  {figures}{_reproduced(row)}")
    done = sum(bool(row.reproduced) for row in listed)
    return [*lines, f"{done} of {len(listed)} rows reproduced here"]


def _reproduced(row: PublishedRow) -> str:
    ours = [f"{label} {one['successes']}/{one['episodes']}" for label, one in row.reproduced.items()]
    return f"  | here: {', '.join(ours)}" if ours else ""


def details(row: PublishedRow) -> list[str]:
    """Return all that is known of one row."""
    from zoo.cli.published_runs import row_lines

    weights = dict.fromkeys(row.weights.values())
    return [
        *row_lines(row),
        f"hardware     {row.hardware}",
        *(f"weights      {name}" for name in weights or ["none that can be read here were published"]),
        *(f"figure       {figure.label}: {figure.percent:g} %" for figure in row.figures),
        f"reproduced   {_reproduced(row).removeprefix('  | here: ') or 'nothing yet'}",
    ]


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    print("\n".join(table(published_rows().values()) if args.name is None else details(find_published(args.name))))
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
