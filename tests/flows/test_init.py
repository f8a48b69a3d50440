"""`ratchet init`: the file that it writes runs to its end by the command, killed once in between."""

import ast
import random
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from flows import command
from storage import durable
from storage.visible import is_hidden
from tests.forks import QUICK
from tests.test_going_on import FILES

TRAIN = FILES["train.py"].replace("    if step % 50 ==", "    time.sleep(pause)\n    if step % 50 ==")
"""That of docs/going-on.md, which takes --output, --steps and --resume, and waits until the test lets it go on."""


def test_the_study_that_is_written_goes_on_after_a_kill(tmp_path, forks, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.ratchet(["init"]) == 0
    assert capsys.readouterr().out == "wrote my_study.py; next: ratchet run my_study.py\n"
    given = ("my_study.py", "--set", "pieces=1000")

    def parts() -> list[Path]:
        return [*tmp_path.glob("runs/my_study/my-study-measure/*/records/*.json")]

    assert forks.run(tmp_path, "run", *given, strike=lambda: len(parts()) > 5)[0] == -signal.SIGKILL
    kept = {file: file.stat().st_mtime_ns for file in parts()[:3]}
    code, printed = forks.run(tmp_path, "run", *given)
    assert code == 0 and "  mean 0." in printed, printed
    assert len([*tmp_path.rglob("attempts/*.json")]) == 2
    assert {file: file.stat().st_mtime_ns for file in kept if file.exists()} in (kept, {}), "none was made anew"


def test_a_script_is_given_the_words_that_it_takes_and_goes_on_from_its_checkpoint(
    tmp_path, forks, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    script = TRAIN.replace("type=int)", "type=int, default=300)", 1).replace(
        "import argparse", "import argparse, time", 1
    )
    waits = "pause = 0.0 if options.resume else 0.05\n"
    (tmp_path / "train.py").write_text(script.replace("pictures, digits =", f"{waits}pictures, digits =", 1))
    assert command.ratchet(["init", "mine", "--train-py", "train.py"]) == 0
    assert capsys.readouterr().out.endswith("then: ratchet run mine.py\n")
    written = (tmp_path / "mine.py").read_text()
    for part in (
        '"--output",\n        run.scratch,',
        'checkpoints="last.pt",',
        'resume=["--resume", "{checkpoint}"],',
        'leaves=["weights.pt"],',
        r'progress=r"step (\d+) of (\d+)",',
    ):
        assert f"        {part}" in written and "to fill in" not in written
    often, kept = QUICK.format(quiet=0.5), "runs/mine/*/*/checkpoints/[0-9]*"
    code, printed = forks.run(tmp_path, "run", "mine.py", first=often, strike=lambda: any(tmp_path.glob(kept)))
    assert code == -signal.SIGKILL, printed
    code, printed = forks.run(tmp_path, "run", "mine.py")
    assert code == 0 and "goes on from last" in printed, printed
    (marker,) = tmp_path.glob("runs/mine/mine-train/*/COMPLETE.json")
    assert durable.read_json(marker.with_name("result.json"))["step"] == 300
    assert len([*marker.parent.glob("attempts/*.json")]) == 2


OTHERWISE = """
import argparse, json, os, torch

def save(state, folder, epoch):
    part = os.path.join(folder, f"ckpt_{epoch}.part")
    torch.save(state, part)
    os.replace(part, os.path.join(folder, f"ckpt_{epoch}.pt"))

parser = argparse.ArgumentParser()
parser.add_argument("--dropout", type=float)
parser.add_argument("--save-dir", default="out")
parser.add_argument("-r", "--resume", action="store_true")
given = parser.parse_args()
for epoch in range(3):
    save({}, given.save_dir, epoch)
    print(f"[Epoch {epoch + 1:3d}/{3}] loss {0.1:.3f}")
with open(given.save_dir + "/metrics.json", "w") as file:
    json.dump({}, file)
"""


JSON_LINES = """
for step in range(9):
    print(f'{{"step": {step}, "loss": 0.1}}')
"""


TRAINER = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Given:
    train_file: str
    rows: int = 3
    model: str = field(default="x")
    labels: int = field(metadata={"help": "x"})

parser = HfArgumentParser((Given, TrainingArguments))
given, arguments = parser.parse_args_into_dataclasses()
trainer = Trainer(None, arguments)
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
trainer.save_model()
"""
CONFIGURATOR = """
import json, os
out_dir = 'out'
eval_interval = 20
init_from = 'scratch'  # or 'resume'
exec(open('configurator.py').read())
begin = 0
if init_from == 'resume':
    begin = json.load(open(os.path.join(out_dir, 'ckpt.json')))['iter_num']
for iter_num in range(begin, 100):
    json.dump({'iter_num': iter_num}, open(os.path.join(out_dir, 'ckpt.json'), 'w'))
    print(f"iter {iter_num}: loss 1.0000, time 1.00ms")
"""
REQUIRED = """
import argparse, random
import numpy as np
import torch
p = argparse.ArgumentParser()
p.add_argument("data")
p.add_argument("-l", "--labels", required=True)
p.add_argument("more", nargs="*")
p.add_argument("-r", "--resume", default=None)
for epoch in range(3):
    print('Epoch: [{0}/{1:3d}] {2}'.format(epoch, 3, "x"))
    torch.save({"epoch": epoch}, "checkpoint.pt")
"""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (TRAINER, [
            '"--output_dir",', "run.scratch,", "# it does not begin without: --train_file, --labels",
            'checkpoints="checkpoint-*",', 'resume=["--resume_from_checkpoint", "{checkpoint}"],',
            'leaves=["model.safetensors"],', r'progress=r"(\d+)/(\d+) \[",',
        ]),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI(None, None)\n", [
            '"fit",', '"--trainer.default_root_dir",', "run.scratch,", "# it takes --config, --model, --data too",
            'checkpoints="lightning_logs/version_*/checkpoints/*.ckpt",', 'resume=["--ckpt_path", "{checkpoint}"],',
            r'progress=r"Epoch (\d+)",',
            "# to fill in, as train_NAME.py does not tell it; without checkpoints a kill costs all:",
            '# leaves=["weights.pt"],',
        ]),
        (CONFIGURATOR, [
            'f"--out_dir={run.scratch}",', "# it takes --eval_interval=, --begin= too", 'checkpoints="ckpt.json",',
            'resume=["--init_from=resume"],', r'progress=r"iter (\d+)",',
            "# to fill in, as train_NAME.py does not tell it; without checkpoints a kill costs all:",
            '# leaves=["weights.pt"],',
        ]),
        (REQUIRED, [
            "# it does not begin without: data, --labels", 'checkpoints="checkpoint.pt",',
            'resume=["--resume", "{checkpoint}"],', r'progress=r"Epoch: \[(\d+)/\s*(\d+)",',
            "# to fill in, as train_NAME.py does not tell it; without checkpoints a kill costs all:",
            '# leaves=["weights.pt"],',
        ]),
        (OTHERWISE, [
            '"--save-dir",', "run.scratch,", "# it takes --dropout too", 'checkpoints="ckpt_*.pt",',
            'resume=["--resume"],', 'leaves=["metrics.json"],', r'progress=r"Epoch \s*(\d+)/(\d+)",',
        ]),
        (JSON_LINES, [
            "progress=r'step" + r"""": (\d+)',""",
            "# to fill in, as train_NAME.py does not tell it; without checkpoints a kill costs all:",
            '# checkpoints="last.pt",', '# resume=["--resume", "{checkpoint}"],', '# leaves=["weights.pt"],',
        ]),
        ("for it in range(9):\n    print('it %d' % it)\n", [
            r'progress=r"it \s*(\d+)",',
            "# to fill in, as train_NAME.py does not tell it; without checkpoints a kill costs all:",
            '# checkpoints="last.pt",', '# resume=["--resume", "{checkpoint}"],', '# leaves=["weights.pt"],',
        ]),
    ],
)  # fmt: skip
def test_what_a_script_s_text_tells_is_filled_in_and_the_rest_named(tmp_path, monkeypatch, script, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_NAME.py").write_text(script)
    assert command.ratchet(["init", "mine", "--train-py", "train_NAME.py"]) == 0
    whole = (tmp_path / "mine.py").read_text()
    assert '"train_NAME.py"' in whole and ('reads=["configurator.py"]' in whole) == (script is CONFIGURATOR)
    written = whole.partition("script.path,\n")[2].partition("    )\n")[0]
    assert [re.sub("(,)  # .*", r"\1", line.strip()) for line in written.splitlines()] == words


def test_nothing_is_overwritten_and_no_file_is_left_that_would_not_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("# mine")
    (tmp_path / "plain.py").write_text("print('trained')\n")
    (tmp_path / "torn.py").write_text("print(")
    for given, said in (
        (["mine"], "mine.py is there already: give another name"),
        (["json"], "the module name 'json' is taken"),
        (["two words"], "its name is no module name"),
        (["other", "--train-py", "none.py"], "--train-py none.py cannot be read"),
        (["other", "--train-py", "torn.py"], "--train-py torn.py:1: SyntaxError"),
        (["no/where"], "no/where.py cannot be written"),
    ):
        assert command.ratchet(["init", *given]) == 2
        assert said in capsys.readouterr().err
    assert (tmp_path / "mine.py").read_text() == "# mine" and len([*tmp_path.iterdir()]) == 3
    assert command.ratchet(["init", "plain_study", "--train-py", "plain.py"]) == 0
    assert '        # checkpoints="last.pt",  # what it goes' in (tmp_path / "plain_study.py").read_text()


def test_a_script_that_reads_a_configurator_beside_it_runs(tmp_path, forks, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CONFIGURATOR)
    over = "import sys\nfor word in sys.argv[1:]:\n    key, value = word[2:].split('=')\n    globals()[key] = value\n"
    (tmp_path / "configurator.py").write_text(over)
    assert command.ratchet(["init", "mine", "--train-py", "train.py"]) == 0
    code, printed = forks.run(tmp_path, "run", "mine.py")
    assert code == 0 and [*tmp_path.glob("runs/mine/mine-train/*/scratch/ckpt.json")], printed


def test_generators_that_a_checkpoint_does_not_hold_are_said_and_the_lines_keep_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(REQUIRED)
    assert command.ratchet(["init", "mine", "--train-py", "train.py"]) == 0
    assert "its checkpoint holds no generators: mine.py has the lines" in capsys.readouterr().out
    lines = re.findall(r"^    #     (.+)$", (tmp_path / "mine.py").read_text(), re.MULTILINE)
    names: dict[str, object] = {"np": np, "torch": torch, "random": random, "state": {}}
    exec(lines[0], names)
    torch.save(names["state"], tmp_path / "last.pt")

    def drawn() -> list[float]:
        return [float(np.random.rand()), random.random(), float(torch.rand(()))]

    first = drawn()
    names["state"] = torch.load(tmp_path / "last.pt")  # as nothing but tensors and plain values
    for line in lines[1:]:
        exec(line, names)
    assert drawn() == first and len(lines) == 4
    (tmp_path / "keeps.py").write_text(REQUIRED.replace('"epoch": epoch', '"rng": torch.get_rng_state()'))
    assert command.ratchet(["init", "keeps_study", "--train-py", "keeps.py"]) == 0
    assert "generators" not in capsys.readouterr().out + (tmp_path / "keeps_study.py").read_text()


def test_a_second_script_has_a_name_of_its_own_and_each_encoding_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written = {
        "first.py": b"x = 1\n",
        "my Train (v2) 100%.py": b"# -*- coding: latin-1 -*-\n# \xe9\n",
        "bom.py": b"\xef\xbb\xbfx = 1\r\n",
    }
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
        assert command.ratchet(["init", "--train-py", name]) == 0, capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.glob("*_study.py")) == [
        "bom_study.py",
        "my_study.py",
        "my_train_v2_100_study.py",
    ]
    assert command.ratchet(["init", "--train-py", "bom.py"]) == 2 and "bom_study_2" in capsys.readouterr().err


WITNESS = """open("ran", "w")"""
BREAKS = f"""last.pt")\n\n{WITNESS}\n\n\ndef more(run):\n    run.command("x"""
HOSTILE = {
    "renamed": f"import os\nsave(1, 'last.tmp')\nos.replace('last.tmp', {BREAKS!r})\n",
    "saved": f"save(1, {BREAKS!r})\n",
    "required": f"add_argument({BREAKS!r})\n",
    "option": f"add_argument('--a', {'--' + BREAKS!r})\n",
    "printed": f'print(f\'step"\\n{WITNESS} {{i}} of {{n}}\')\nprint(f"epoch\\\\\\" {{i}}")\n',
    "quotes": "print(f'step\\'\\\" {i} of {n}')\n",
    "dataclass": "from dataclasses import dataclass\nHfArgumentParser()\n@dataclass\nclass A:\n    x: int\n",
    "opened": f"out_dir = 1\nexec(open({BREAKS!r} + 'configurator').read())\n",
}


@pytest.mark.parametrize(
    "name", ["t.py", f"a\n{WITNESS}\n.py", f'a"""\n{WITNESS}\n"""'.replace("/", "") + ".py", "\u202et\\.py"]
)
@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
def test_nothing_of_a_script_or_its_name_is_run_or_hidden(tmp_path, monkeypatch, script, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(script)
    assert command.ratchet(["init", "mine", "--train-py", name]) == 0
    written = (tmp_path / "mine.py").read_text()
    assert not (tmp_path / "ran").exists() and not any(map(is_hidden, written))
    tree = ast.parse(written)
    assert [type(node) for node in tree.body if not isinstance(node, ast.ImportFrom)] == [
        ast.Expr, ast.Import, ast.FunctionDef, ast.FunctionDef,
    ]  # fmt: skip
    assert any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(tree))
