"""sweep: the cells of a sweep side by side, of any study. Nothing here says which cell is better."""

from __future__ import annotations

from dataclasses import replace

from storage.lineage import Lineages
from tasks.report import figures
from tasks.report.again import made_again
from tasks.report.attempts_page import publish_attempts
from tasks.report.dag import Dag
from tasks.report.dag_figure import dag_figure
from tasks.report.page import html_page
from tasks.report.provenance import beside, provenance, provenance_section, run_directories, sources
from tasks.report.publish import Published, publish, require_verified
from tasks.stage.run import StageInput, StageRun
from tasks.sweep.configuration import SweepConfig
from tasks.sweep.figures import drawn
from tasks.sweep.metrics import metrics_of
from tasks.sweep.results import found
from tasks.sweep.tables import facts, lead, sections, title
from tasks.training.unlearned import unlearned


def sweep(run: StageRun, config: SweepConfig, **cells: StageInput) -> Published:
    """Verifies every byte that it reads, and writes tables, figures and the report over all cells."""
    require_verified(cells)
    figures.prepare(run.cache)
    results = found(config, cells, run_directories(cells, run.run.root))
    metrics = metrics_of(results, config.numbers)
    pictures = drawn(results, metrics)
    parts = sections(results, metrics, pictures)
    known, lineages = facts(results), Lineages()
    if nothing := unlearned(one for cell in cells.values() for one in lineages.of(cell.run).runs()):
        known.append(f"**{nothing}.**")
    markdown = [f"# {title(results)}", lead(results), "\n".join(f"- {fact}" for fact in known)]
    for section in parts:
        markdown += [f"## {section.title}", *section.texts, *(table.markdown() for table in section.tables)]
    dag = Dag.of(run, cells.values())
    picture, again = dag_figure(dag), made_again(config.page, config.profile, dag, config.over)
    origin = provenance_section(results.runs, provenance(cells), sources(cells), picture, again)
    origin = replace(origin, tables=[table for table in origin.tables if table.rows])
    texts = {
        "table.md": "\n\n".join(markdown) + "\n",
        "report.html": html_page(
            title(results), lead(results), known, [*parts, origin], beside=beside(["table.md", "figures/"])
        ),
    }
    publish_attempts(run, config.study, dag)
    return publish(run, results, texts, {name: shown.svg for name, shown in (pictures | {"stages": picture}).items()})
