"""The command line: its options are frozen, and bad input gets one clear message and exit code 2."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.views.index import leave_for_people
from flows import command
from storage import durable, locks
from tests.conftest import REPOSITORY
from tests.flows.answers import Study, finished


def test_the_options_are_frozen():
    """People's scripts depend on these: a new option is added here on purpose."""

    study = "-h --help --profile --root --set --seed --dispatch --wait --detach --prefect --fresh --dry-run --status"
    study += " --show-config --keys"
    given = command.ratchet_parser()[1]["run"]._actions
    assert {option for action in given for option in action.option_strings} == {*study.split()}


def test_the_commands_are_frozen(capsys):
    with pytest.raises(SystemExit):
        command.ratchet(["--help"])
    shown = re.findall(r"^    (\w+)\b", capsys.readouterr().out, re.MULTILINE)
    of_study, of_runs = "init run sweep status cancel rehearse", "list show compare audit card index"
    others = "tensorboard verify prune export ui deploy doctor deployments schema completion"
    assert shown == f"{of_study} {of_runs} {others}".split()


def test_without_a_command_its_help_is_shown_and_a_version_is_there(capsys):
    for given, shown in (([], "usage: ratchet "), (["--version"], f"ratchet {version('ratchet')}\n")):
        with pytest.raises(SystemExit) as ended:
            command.ratchet(given)
        assert ended.value.code == 0 and capsys.readouterr().out.startswith(shown)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["statu"], "status"),
        (["run", "robustnes"], "robustness"),
        (["run", "robustness", "--profile", "smok"], "smoke"),
        (["run", "robustness", "--profile", "smoke", "--set", "constraint.variant=mlp_bth"], "mlp_both"),
        (["run", "robustness", "--profile", "smoke", "--set", "budget.epoch=1"], "epochs"),
        (["run", "robustness", "--profile", "smoke", "--root", "{root}", "--fresh", "trainsfer"], "transfer"),
        (["run", "robustness", "--keys", "bugdet"], "budget"),
        (["run", "robustness", "--dry-runn"], "--dry-run"),
        (["run", "robustness", "--dispatch", "slrum"], "slurm"),
        (["completion", "bsh"], "bash"),
        (["list", "--rot=runs"], "--root"),
        (["deploy", "inversion/quik"], "inversion/quick"),
    ],
    ids=lambda given: given[-1] if isinstance(given, list) else "",
)
def test_a_slip_of_the_finger_is_told_what_was_meant(given, meant, tmp_path, capsys):
    assert command.ratchet([word.format(root=tmp_path) for word in given]) == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err


def test_what_is_missing_or_too_much_is_one_line(capsys):
    for given, said in (
        ("show", "ratchet show: the following arguments are required: RUN; ratchet show --help says"),
        ("show a b c", "ratchet show takes RUN, and no 'b' too; ratchet show --help says"),
        ("compare a b c", "ratchet compare takes A B, and no 'c' too; "),
        ("list --confidence", "ratchet list takes no '--confidence'; "),
        ("compare a.csv --min-seeds 1", "argument --min-seeds: 1 is below 2: one seed shows no difference; "),
    ):
        assert command.ratchet(given.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {said}") or said in line, line


def test_every_key_is_shown_with_type_unit_default_limits_and_description(capsys):
    assert command.ratchet(["run", "robustness", "--keys", "splits.max_shared_shingles"]) == 0
    assert capsys.readouterr().out == (
        "splits.max_shared_shingles\n    float, default 0.2, >= 0, <= 1\n"
        "    A train document with a larger share of its 13-word shingles in an evaluation split is left out.\n"
    )
    assert command.ratchet(["run", "robustness", "--keys"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "with text.source=files:\n", "mlp_in | mlp_both",
        "budget.epochs\n    float or null (epochs), default 1.0, > 0",
        "execution.device\n    auto | cpu | cuda, default cpu, ",
        "text.paths\n    list of str, required, length >= 1", "splits.train_documents\n    int or null (documents)",
        "arms\n    list of baseline | monotonic | own-signs | ", ", default [baseline, monotonic, random-signs, ",
        "learning_rates\n    list of float, default []\n", "primary.attack\n    uat | hotflip, default hotflip\n",
    ):  # fmt: skip
        assert part in shown, part


def test_a_word_in_the_names_of_several_keys_shows_each_with_its_meaning(capsys):
    """It was told the one group whose name is most like it."""
    for word, keys in (("flips", ["hotflip.flips"]), ("text_tokens", ["uat.text_tokens", "hotflip.text_tokens"])):
        assert command.ratchet(["run", "robustness", "--keys", word]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if not line.startswith(" ")] == keys and len(lines) == 3 * len(keys)


def test_keys_of_a_group_that_does_not_exist_name_those_that_do(capsys):
    assert command.ratchet(["run", "robustness", "--keys", "bugdet"]) == 2
    assert (
        "no such key or group; did you mean 'budget'? it has arms, audit, base_checks, budget, "
        in capsys.readouterr().err
    )


def test_the_configuration_that_is_shown_is_the_study_as_a_profile(tmp_path, capsys):
    given = ["robustness", "--profile", "smoke", "--set", "budget.epochs=0.25", "--seed", "7"]
    nowhere = ["--root", str(tmp_path / "runs")]
    assert command.ratchet(["run", *given, "--show-config"]) == 0
    file = tmp_path / "shown.yaml"
    file.write_text(capsys.readouterr().out)
    assert command.ratchet(["run", "robustness", "--profile", str(file), "--dry-run", *nowhere]) == 0
    from_file = capsys.readouterr().out
    assert command.ratchet(["run", *given, "--dry-run", *nowhere]) == 0
    assert capsys.readouterr().out == from_file and "would run" in from_file


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_shell_completes_the_commands(shell, capsys):
    assert command.ratchet(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert "show-config" in shown and "prune" in shown


def test_bash_accepts_its_completion_and_offers_commands_studies_profiles_keys_and_runs(tmp_path, capsys):
    """As a person types it: the keys are asked of `ratchet` itself, and what a folder is called is not run."""
    for stage, print_ in (("train", "3fc1b07a"), ("report", "3fe2"), ("report", "5a72"), ("$(touch ran)", "7b")):
        (tmp_path / "runs" / "one" / stage / print_).mkdir(parents=True)
        (tmp_path / "runs" / "one" / stage / print_ / "stage.json").touch()
    (tmp_path / "runs" / "one" / "latest").symlink_to("report/5a72")
    command.ratchet(["completion", "bash"])
    (tmp_path / "ratchet").write_text(f'#!/bin/sh\nexec {sys.executable} -m flows "$@"\n')
    (tmp_path / "ratchet").chmod(0o755)
    there = f"--root {tmp_path}/runs"
    typed = ["ve", "run ro", "run icecube --profile ''", "sweep inversion --set budget.ep", f"show {there} 3f"]
    typed += [f"compare {there} 5a72 one/tr", f"audit {there} one/l", f"show {there} 'one/$'", f"show {there} nothing"]
    ask = "".join(
        f"COMP_WORDS=(ratchet {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        "_shtab_ratchet; echo ${COMPREPLY[@]}\n"
        for line in typed
    )
    done = subprocess.run(
        ["bash", "-c", capsys.readouterr().out + "\n" + ask],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=REPOSITORY,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    of_study = ["verify", "robustness", "icecube quick smoke", "budget.epochs"]
    of_runs = ["3fe2 3fc1b07a", "one/train/3fc1b07a", "one/latest", "one/$(touch ran)/7b", ""]
    assert done.stdout.splitlines() == [*of_study, *of_runs], done.stderr
    assert not [*tmp_path.rglob("ran")] and not (REPOSITORY / "ran").exists()


def test_an_unknown_study_names_those_there_are(capsys):
    assert command.ratchet(["run", "robustnes"]) == 2
    error = capsys.readouterr().err
    assert "there is no study 'robustnes'; did you mean 'robustness'? the studies are " in error
    assert all(study in error for study in ("calorimeter", "icecube", "summarisation"))


def test_dry_run_shows_every_stage_and_writes_nothing(run_here, tmp_path):
    code, printed = run_here("--root", tmp_path / "runs", "--dry-run")
    assert code == 0 and printed.count("would run") == 16 and not (tmp_path / "runs").exists()


def test_dry_run_says_what_would_go_on(run_here, tmp_path):
    _, printed = run_here("--root", tmp_path, "--dry-run")
    print_ = next(line.split()[1] for line in printed.splitlines() if line.startswith("base "))
    checkpoint = tmp_path / "smoke" / "base" / print_[:12] / "checkpoints" / "40"
    checkpoint.mkdir(parents=True)
    durable.write_json(checkpoint / "manifest.json", {"files": {}, "identity": {}})
    _, printed = run_here("--root", tmp_path, "--dry-run")
    assert printed.count("would run") == 15 and f"{print_}  would go on (step 40 is saved)" in printed


def test_status_of_a_study_that_was_never_started(run_here, tmp_path):
    code, printed = run_here("--root", tmp_path, "--status")
    assert code == 75 and "setup" in printed and "not started" in printed and "waits for setup" in printed
    assert "there is no folder" not in printed
    code, printed = run_here("--root", tmp_path / "nowhere", "--status")
    assert code == 75 and printed.startswith(f"there is no folder {tmp_path / 'nowhere'} yet: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("budget.epoch=1", "did you mean 'epochs'"),
        ("seed=abc", "seed: must be a whole number (it is 'abc')"),
        ("text.packages=[no-such-package]", "'no-such-package', which is not installed"),
        ("text={{source: files, paths: [/no/such/file]}}", "text.paths: there is no file or folder /no/such/file"),
        ("text={{source: files, paths: [assets/no.jsonl]}}", "assets/no.jsonl: `make assets` fetches it"),
        ("model={{source: directory, path: {folder}/model}}", "{folder}/model has no weights"),
    ],
)
def test_a_wrong_configuration_is_refused_before_anything_runs(run_here, tmp_path, change, message):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    code, printed = run_here("--root", tmp_path / "runs", "--set", change.format(folder=tmp_path))
    assert code == 2 and message.format(folder=tmp_path) in printed and printed.startswith("error: ")
    assert not (tmp_path / "runs").exists() and "Prefect" not in printed


def test_a_root_that_is_a_file_is_refused_before_anything_runs(run_here, tmp_path):
    (tmp_path / "notes.txt").touch()
    code, printed = run_here("--root", tmp_path / "notes.txt")
    assert code == 2 and printed.startswith(f"error: --root {tmp_path}/notes.txt is a file: name the folder")


def test_a_deadline_that_is_no_number_is_bad_input(run_here, new_root, monkeypatch):
    monkeypatch.setenv("RATCHET_DEADLINE", "tomorrow")
    code, printed = run_here("--root", new_root, "--seed", "5")
    assert code == 2 and "bad input: setup: RATCHET_DEADLINE is 'tomorrow'" in printed, printed


@pytest.mark.parametrize(
    ("change", "message"),
    [("text={source: files, paths: [%s/empty.txt]}", "empty.txt"), ("splits.test_documents=100000", "split test")],
)
def test_bad_input_that_setup_finds_ends_the_study_with_exit_code_2(
    run_here, new_root, tmp_path, change, message, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "empty.txt").touch()
    code, printed = run_here("--root", new_root, "--set", change % tmp_path if "%s" in change else change)
    assert code == 2 and message in printed, printed
    assert not list(new_root.rglob("COMPLETE.json")) and not list(tmp_path.rglob(".tmp-*"))
    (attempt,) = new_root.rglob("attempts/*.json")
    record = durable.read_json(attempt)
    assert (record["end_state"], record["exit_code"]) == ("bad_input", 2) and message in record["diagnosis"]["summary"]


def test_a_missing_gpu_is_bad_input_of_the_first_stage_that_needs_one(run_here, new_root, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, printed = run_here("--root", new_root, "--set", "execution.device=cuda")
    assert code == 2 and "base: execution.device is cuda, and torch " in printed, printed
    assert [marker.parts[-3] for marker in new_root.rglob("COMPLETE.json")] == ["setup"]


def test_a_run_directory_held_by_a_live_process_is_refused_naming_it(run_here, tmp_path):
    _, printed = run_here("--root", tmp_path, "--dry-run")
    setup = tmp_path / "smoke" / "setup" / printed.split()[1][:12]
    setup.mkdir(parents=True)
    lock = locks.acquire(setup / "locks")
    try:
        code, printed = run_here("--root", tmp_path)
    finally:
        lock.release()
    assert code == 2 and f"held by a live process: pid {os.getpid()} on " in printed
    kept = "what is finished is kept, and when the process that holds the stage has ended the same command goes on"
    assert kept in printed, "nothing is to be corrected"
    assert not list(tmp_path.rglob("attempts/*"))


def test_a_server_that_does_not_answer_is_bad_input(tmp_path, capsys):
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        code = command.main("flows.robustness", ["--profile", "smoke", "--root", str(tmp_path)])
    assert code == 2 and "PREFECT_API_URL=http://127.0.0.1:9/api does not answer" in capsys.readouterr().err


def test_a_failed_check_fails_the_study_with_exit_code_1_and_says_what_was_measured(run_here, new_root):
    code, printed = run_here("--root", new_root, "--set", "base_checks.max_ratio_to_unigram=0.001")
    assert code == 1 and "the base model is trained" in printed and "required at most 0.001" in printed
    (log,) = new_root.glob("smoke/base/*/attempts/0001.log")
    assert "failed: base: check failed: " in printed and f"log: {log}" in printed
    code, printed = run_here("--root", new_root, "--set", "base_checks.max_ratio_to_unigram=0.001", "--status")
    assert "check failed in attempt 1, 52/52 steps" in printed and "waits for base" in printed


def test_another_python_is_refused_by_name(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 14, 0, "final", 0))
        code = command.main("flows.robustness", ["--dry-run"])
    assert code == 2 and "use Python 3.11, 3.12 or 3.13" in capsys.readouterr().err


def test_the_status_of_a_study_on_slurm_asks_no_prefect_server(tmp_path, monkeypatch, capsys):
    """The server may die at any moment, and that is when somebody asks."""
    site = tmp_path / "site.yaml"
    site.write_text(f"root: {tmp_path}\n")
    monkeypatch.setenv("RATCHET_SITE", str(site))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        code = command.main("flows.robustness", ["--profile", "smoke", "--dispatch", "slurm", "--status"])
    printed = capsys.readouterr().out
    assert code == 75 and "ready: starting the study starts it" in printed and "waits for setup" in printed


def test_the_root_of_the_site_is_taken_where_no_runs_are_here_and_a_study_s_name_for_its_newest_result(
    tmp_path, monkeypatch, capsys
):
    last = finished(tmp_path / "shared", Study(name="one"))[-1]
    leave_for_people(last)
    (tmp_path / "site.yaml").write_text(f"root: {tmp_path / 'shared'}\n")
    monkeypatch.setenv("RATCHET_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.chdir(tmp_path)
    for words in (["list"], ["show", "one"], ["verify"]):
        assert command.ratchet(words) == 0 and "one" in capsys.readouterr().out
    (tmp_path / "runs").mkdir()
    assert command.ratchet(["show", "one"]) == 2 and "no runs below runs" in capsys.readouterr().err
