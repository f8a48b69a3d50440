"""Pages of one's own: several of them in one process, as `advance` has them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from deployments.dag.page import load_page
from deployments.dag.walk import Handle
from deployments.slurm.cluster.site import Site
from deployments.slurm.study import study as study_file
from tests.slurm.harness import kept_study

PAGE = '''
from settings import Config, WORK
from tasks.stage.run import Stage
from tasks.stage.study import StudyBase

class Study(StudyBase):
    """One's own."""

ONLY = Stage("only", Config, WORK, needs="cpu")

def page(study: Study, stage):
    from settings import Config as again
    assert again is Config
    return stage(ONLY, Config())
'''
SETTINGS = '''
from tasks.stage.configuration import scientific
from tasks.stage.study import StageConfiguration

WORK = "work:{function}"

class Config(StageConfiguration):
    """One's own."""
    {field}: int = scientific(1, description="A number.")
'''


def written(folder: Path, name: str) -> Path:
    """A study in files that are called as those of every other such study."""
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(PAGE)
    (folder / "settings.py").write_text(SETTINGS.format(function=name, field=name))
    (folder / "work.py").write_text(f"def {name}(run, config):\n    return {{}}\n")
    return folder / "mine.py"


def fields(handles: list[Handle]) -> list[str]:
    return [name for handle in handles for name in handle.config.scientific()]


def test_two_pages_with_files_of_the_same_names_do_not_mix_in_one_process(tmp_path: Path) -> None:
    """The second was refused: `advance` left it alone for ever, and a cancel of the first did not spare its stages."""
    root = tmp_path / "runs"
    places = {name: written(tmp_path / folder, name) for name, folder in [("one", "a"), ("two", "b"), ("three", "a/c")]}
    pages = {name: load_page(str(place)) for name, place in places.items()}
    for name in ("one", "two", "three", "two", "one"):
        kept = kept_study(root, pages[name].model(name=name), pages[name])
        assert fields(kept.handles) == [name]
    read = {
        page.place: fields(kept_study(root, study, page).handles)
        for _, page, study in study_file.readable(root, Site(root=str(root)))
    }
    assert read == {str(place): [name] for name, place in places.items()}


def test_a_page_in_a_folder_with_its_environment_takes_no_installed_module_along(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a", "one"), written(tmp_path / "b", "two")
    environment = tmp_path / "a" / ".venv" / "lib"
    environment.mkdir(parents=True)
    (environment / "installed_there.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(environment))
        installed = importlib.import_module("installed_there")
        load_page(str(one))
        load_page(str(other))
        assert importlib.import_module("installed_there") is installed


def test_a_folder_without_an_init_file_is_a_package_of_its_own_page(tmp_path: Path) -> None:
    for name, folder in (("one", "a"), ("two", "b")):
        place = written(tmp_path / folder, name)
        (place.parent / "parts").mkdir()
        (place.parent / "settings.py").rename(place.parent / "parts" / "settings.py")
        place.write_text(place.read_text().replace("from settings", "from parts.settings"))
    pages = [load_page(str(tmp_path / folder / "mine.py")) for folder in ("a", "b")]
    for page, name in zip(pages, ("one", "two"), strict=True):
        assert fields(kept_study(tmp_path / "runs", page.model(name=name), page).handles) == [name]
