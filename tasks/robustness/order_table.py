"""The table on order: whether the feed-forward sublayers are monotone functions, proved, refuted, and on text."""

from __future__ import annotations

from tasks.findings.table import Table
from tasks.robustness.attack_tables import run_of
from tasks.robustness.final_results import FinalResults
from tasks.robustness.words import label


def order_tables(results: FinalResults) -> list[Table]:
    """Of every model the answer for its worst sublayer; a proof holds for all inputs, the rest for those looked at."""
    found = results.order
    scope = next(iter(found.models.values())).certificate.scope
    return [
        Table(
            f"{scope[0].upper()}{scope[1:]}. Monotone: proved, refuted by a verified pair of inputs, or unknown. "
            "Steepest fall found: of an output, per unit of the rise of the inputs, and what it can be at most (- "
            "where no bound is known).",
            ["model", "activation", "monotone", "method", "falls by", "at most", "pairs tried", "run"],
            [
                [
                    label(results, name),
                    order.certificate.activation,
                    order.certificate.certified,
                    order.certificate.sublayers[0].method,
                    _size([one.worst_violation_found for one in order.certificate.sublayers]),
                    _size([one.worst_violation_bound for one in order.certificate.sublayers]),
                    f"{order.certificate.pairs_tried:,}",
                    run_of(results, "order"),
                ]
                for name, order in found.models.items()
            ],
        ),
        Table(
            f"The same at inputs that {found.documents} documents of the {found.split} split give: share of the "
            "Jacobian's entries below 0, and their share in its size; outputs that fall when inputs rise, and theirs.",
            ["model", "entries below 0", "of size", "outputs that fall", "of size", "inputs", "run"],
            [
                [
                    label(results, name),
                    f"{order.on_text.jacobian.share:.2%}",
                    f"{order.on_text.jacobian.share_of_size:.2%}",
                    f"{order.on_text.rises.share:.2%}",
                    f"{order.on_text.rises.share_of_size:.2%}",
                    f"{order.on_text.inputs:,}",
                    run_of(results, "order"),
                ]
                for name, order in found.models.items()
            ],
        ),
    ]


def _size(falls: list[float | None]) -> str:
    """The steepest, without its sign; - where one is not known."""
    known = [fall for fall in falls if fall is not None]
    return f"{abs(min(known)):.2g}" if len(known) == len(falls) else "-"
