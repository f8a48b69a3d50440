"""Commands that read files answer at once: none of them imports what takes seconds."""

import subprocess
import sys

from tests.conftest import REPOSITORY
from tests.flows.answers import Study, finished

HEAVY = {
    *("prefect", "fastapi", "sqlalchemy", "httpx", "torch", "transformers", "tokenizers", "datasets", "safetensors"),
    *("uvicorn", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "matplotlib", "markdown_it", "pygments"),
}
"""Prefect takes 0.8 s of processor time, torch 2 s, pyarrow, numpy and a table's Markdown 0.1 s each."""

ASKED = """
import sys
from flows.command import ratchet
for line in {lines!r}:
    try:
        code = ratchet(line.split())
    except SystemExit as end:
        code = end.code
    heavy = set(sys.modules) & {heavy}
    if heavy or code != {code}:
        sys.exit(f"ratchet {{line}}: {{code}}, imported {{sorted(heavy)}}")
"""
STUDIES = ("calorimeter", "icecube", "inversion", "poison", "robustness", "summarisation")


def test_no_command_that_reads_files_imports_what_takes_seconds(tmp_path):
    """Those that take more stand behind: the first that imports something heavy is named."""
    (_, answer), (_, other) = (finished(tmp_path / "runs", Study(name="one", seed=seed)) for seed in (42, 43))
    runs, none = tmp_path / "runs", tmp_path / "none"
    of_all = f"""
        --help
        --version
        run --help
        completion bash
        verify {runs}
        prune {runs}
        export {runs} {tmp_path / "copy"}
        list {runs}
        show {answer.run.path}
        compare {answer.run.path} {other.run.path}
        run robustness --keys
        run icecube --keys budget
        run inversion --show-config
        schema icecube
        init {tmp_path / "a_study"}"""
    dry_runs = [f"run {study} --profile smoke --root {none} --dry-run" for study in STUDIES]
    asked(0, ["", *of_all.split("\n")[1:], *dry_runs])
    asked(75, [f"status {study} --profile smoke --root {none}" for study in STUDIES])


def test_no_slip_of_a_finger_imports_what_takes_seconds(tmp_path):
    of_a_study = ("profile smok", "set budget.epoch=1", "set constraint.variant=mlp_bth", "keys bugdet")
    slips = [f"run robustness --profile smoke --{slip}" for slip in of_a_study]
    asked(
        2,
        [
            "statu",
            "run",
            "list --rot runs",
            "run robustness --dry-runn",
            "run robustnes",
            f"show nothing --root {tmp_path}",
            *slips,
        ],
    )


def test_a_job_imports_nothing_that_takes_seconds_before_its_work():
    code = f"import sys; import flows.stage; sys.exit(', '.join({HEAVY} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr


def test_a_page_s_flow_is_prefect_s_own_as_soon_as_it_is_asked_for():
    code = """
import sys
from flows.inversion import inversion
assert "prefect" not in sys.modules
assert inversion.name == "inversion" and "prefect" in sys.modules
from prefect import Flow
from deployments.study_flow import made
assert isinstance(made(inversion), Flow) and made(inversion) is made(inversion)
from flows.icecube import icecube
assert isinstance(icecube, Flow)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def asked(code: int, lines: list[str]) -> None:
    """Each line is a command that ends with this exit code, and imports nothing heavy."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(lines=lines, heavy=HEAVY, code=code)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
