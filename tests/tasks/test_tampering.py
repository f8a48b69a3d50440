"""Every number of a report has an origin that it names, and no edit of a source moves another one unseen."""

import os
import random
from pathlib import Path

import pytest

from storage import durable
from tests.docs import origins
from tests.share import SEED
from tests.tasks.calorimeter import edits as calorimeter
from tests.tasks.icecube import edits as icecube
from tests.tasks.inversion import edits as inversion
from tests.tasks.poison import edits as poison
from tests.tasks.resealed import AUDIT, asked_again, nothing, refused, unchanged
from tests.tasks.smoke import Smoke
from tests.tasks.tampering import leaves, origin_of, origins_of, runs_of, sources, table

STUDIES = {name: Smoke(name) for name in origins.STUDIES}
EDITED = {"calorimeter": calorimeter, "icecube": icecube, "inversion": inversion, "poison": poison}
REFUSED = [
    (study, *case)
    for study, tables in EDITED.items()
    for case in (*tables.REFUSED, *(("report", edit, unchanged, said) for edit, said in AUDIT))
]


def folder_of(study: str) -> Path:
    finished = STUDIES[study].finished()
    return finished.root / finished.study.name


@pytest.mark.parametrize("study", STUDIES)
def test_each_number_is_computed_or_asked_or_named_as_not_asked(study: str) -> None:
    (last,) = (runs[0] for runs in runs_of(folder_of(study)).values() if (runs[0] / "final_results.json").exists())
    names = [name for name, _ in leaves(durable.read_json(last / "final_results.json"))]
    assert len(names) > 100 and not [name for name in names if not origin_of(origins_of(study), name)]


def require_nothing_unnamed(study: str, count: int) -> None:
    every = sources(folder_of(study))
    chosen = random.Random(os.environ.get(SEED, "")).sample(every, count)
    found = [*table(study, folder_of(study), chosen)]
    assert len(found) == len(chosen) and not [row for row in found if row[1] == "not named"]


@pytest.mark.parametrize("study", STUDIES)
def test_some_edits_of_a_source_are_refused_or_named(study: str) -> None:
    require_nothing_unnamed(study, count=3)


@pytest.mark.long
@pytest.mark.parametrize("study", STUDIES)
def test_more_edits_of_a_source_are_refused_or_named(study: str) -> None:
    require_nothing_unnamed(study, count=20 if study == "summarisation" else 40)  # of which one takes 6 s


@pytest.mark.parametrize(
    ("study", "stage", "edit", "change", "said"), REFUSED, ids=[f"{row[0]}-{at}" for at, row in enumerate(REFUSED)]
)
def test_what_was_edited_by_hand_is_refused_by_name(study, stage, edit, change, said, tmp_path: Path) -> None:
    assert said in refused(stage, STUDIES[study], tmp_path, edit, change)


@pytest.mark.parametrize("stage", ["audit", "report"])
@pytest.mark.parametrize("study", EDITED)
def test_what_was_not_edited_passes(study: str, stage: str, tmp_path: Path) -> None:
    asked_again(stage, STUDIES[study], tmp_path, nothing)
