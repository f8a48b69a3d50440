"""`import ratchet`: one place for all that a study of one's own is written with."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

import ratchet
from storage.errors import BadInput
from tests.conftest import REPOSITORY
from tests.docs.pages import PAGES
from tests.flows.test_cold_start import HEAVY


def test_a_page_s_names_load_neither_torch_nor_prefect():
    code = f"""
import sys
from ratchet import BadInput, Budget, Dispatcher, Execution, Handle, Numerics, Stage, StageRun, StudyBase, study_flow
found = set(sys.modules) & {HEAVY}
sys.exit(", ".join(found) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_each_name_is_there():
    without = set() if find_spec("lightning") else {"train_lightning"}  # an extra, which need not be there
    missing = [name for name in {*ratchet.__all__} - without if not hasattr(ratchet, name)]
    assert not missing and {*ratchet.__all__} == {*dir(ratchet)}
    with pytest.raises(AttributeError, match="ratchet has no 'Stagee'; did you mean 'Stage'"):
        ratchet.Stagee  # noqa: B018


@pytest.mark.skipif(bool(find_spec("lightning")), reason="lightning is installed")
def test_a_name_of_an_extra_that_is_not_installed_says_how_to_install_it():
    with pytest.raises(BadInput, match=r"No module named 'lightning': pip install .*'\.\[lightning\]'"):
        ratchet.train_lightning  # noqa: B018


def test_the_page_about_an_own_study_imports_nothing_else_of_ours():
    page = PAGES["docs/your-own-study.md"]
    assert "import ratchet as r" in page
    assert not [room for room in ("tasks", "deployments", "storage", "flows") if f"from {room}." in page]
