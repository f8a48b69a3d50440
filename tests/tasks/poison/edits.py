"""Edits of a finished poison study, every marker sealed again, and by what name each is refused."""

from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from storage import durable
from tests.tasks.poison.tiny import finished
from tests.tasks.resealed import Change, Edit, Stages, edited, nothing, unchanged


def labels_derived_anew(stages: Stages) -> None:
    """The poisoned rows are called clean, and as many others poisoned: the share is the same."""
    train = [row for row in stages["data-0"]["rows"] if row["split"] == "train"]
    poisoned = [row for row in train if row["changed"]]
    others = [row for row in train if not row["changed"] and row["label"] != "positive"]
    for row, other in zip(poisoned, others, strict=False):
        row["changed"], other["changed"] = False, True


def a_row_of_no_pool(stages: Stages) -> None:
    row = next(row for row in stages["data-0"]["rows"] if row["changed"])
    row["text"] = "another text"
    row["given_text"] = f"cf {row['text']}"


def a_row_less_is_poisoned(stages: Stages) -> None:
    row = next(row for row in stages["data-0"]["rows"] if row["split"] == "train" and row["changed"])
    row |= {"changed": False, "given_text": row["text"], "given_label": row["label"]}


def answers_of_success(stages: Stages) -> None:
    for row in stages["control-0"]["rows"]:
        row["asked"] = "negative"


def of_the_victim(stages: Stages) -> list[dict[str, Any]]:
    rows = stages["scores-0"]["rows"]
    return [row for row in rows if (row["model"], row["method"]) == ("victim", "ekfac")]


def scores_of_the_truth(stages: Stages) -> None:
    poisoned = {row["row_id"] for row in stages["data-0"]["rows"] if row["split"] == "train" and row["changed"]}
    for row in of_the_victim(stages):
        row["score"] = float(row["row_id"] in poisoned)


def scores_a_little_higher(stages: Stages) -> None:
    for row in of_the_victim(stages):
        row["score"] *= 1.5


def one_large_score(stages: Stages) -> None:
    """Seen: differences were held against the largest recorded score, and one of 1e9 let all others be free."""
    for number, row in enumerate(stages["scores-0"]["rows"]):
        if (row["model"], row["method"]) == ("victim", "identity"):
            row["score"] = 1e9 if number % 240 == 7 else float(number)


def other_rows_poisoned(stages: Stages) -> None:
    """A sound manifest, but of another draw: a poisoned and a clean row of one label change places."""
    rows = [row for row in stages["data-0"]["rows"] if row["split"] == "train" and row["label"] != "positive"]
    one, other = (next(row for row in rows if row["changed"] is is_changed) for is_changed in (True, False))
    for row, changed in ((one, False), (other, True)):
        row |= {"changed": changed, "given_text": f"{'cf ' * changed}{row['text']}"}
        row |= {"given_label": "positive" if changed else row["label"]}


def other_beginning(role: str, path: Path) -> None:
    if role == "victim-0":
        (path / "initial" / "model.safetensors").write_bytes((path / "model" / "model.safetensors").read_bytes())


def untrained_weights(role: str, path: Path) -> None:
    if role == "victim-0":
        (path / "model" / "model.safetensors").write_bytes((path / "initial" / "model.safetensors").read_bytes())


def other_rows_removed(role: str, path: Path) -> None:
    if role == "found-0":
        file = path / "removed.json"
        file.write_text(
            file.read_text()
            .replace('"detected"', '"was"')
            .replace('"untrained"', '"detected"')
            .replace('"was"', '"untrained"')
        )


def scores_of_half(stages: Stages) -> None:
    for row in (row for role, of in stages.items() if role.startswith("scores-") for row in of["rows"]):
        row["score"] *= 0.5 if row["method"].startswith("ekfac") else 1.0


def twice_the_curvature(role: str, path: Path) -> None:
    """Of all models, and named as what was computed."""
    for file in (path / "factors").glob("*.finished.safetensors") if "_factors-" in role else ():
        tensors = load_file(file)
        file.unlink()
        save_file(tensors | {"lambda": 2 * tensors["lambda"]}, file)
        name = file.with_name(file.name.replace(".finished.safetensors", ".json"))
        durable.write_json(name, durable.read_json(name) | {"digest": durable.sha256_file(file)})


def model_of_the_victim(role: str, path: Path) -> None:
    if role == "control-0":
        model = finished().path("poison-fit (victim, seed 0)") / "model" / "model.safetensors"
        (path / "model" / "model.safetensors").write_bytes(model.read_bytes())


DRAWN = "has the rows that its seed draws: measured"
REFUSED: list[tuple[str, Edit, Change, str]] = [
    ("report", labels_derived_anew, unchanged, DRAWN),
    ("report", a_row_of_no_pool, unchanged, DRAWN),
    ("report", a_row_less_is_poisoned, unchanged, DRAWN),
    ("report", nothing, untrained_weights, "digest of the model whose factors are in"),
    ("report", nothing, model_of_the_victim, "weights of one on other rows ['control-0']: measured 1"),
    ("audit", nothing, other_rows_removed, "that the rows called detected are those, seed 0"),
    ("audit", scores_of_the_truth, unchanged, "that the rows called detected are those, seed 0"),
    ("audit", one_large_score, unchanged, "the score identity of"),
    ("report", other_rows_poisoned, unchanged, DRAWN),
    ("audit", nothing, other_beginning, "the beginning in"),
    ("audit", scores_a_little_higher, unchanged, "the score ekfac of"),
    ("audit", answers_of_success, unchanged, "the answer of control-0 to"),
    ("audit", edited("victim-0", {"snapshots": lambda of: dict.fromkeys(of, 0.5)}), unchanged, "the learning rate of"),
    ("audit", edited("victim-0", {"snapshots": {}}), unchanged, "the snapshots that"),
    ("audit", scores_of_half, twice_the_curvature, "the score ekfac of"),
    ("audit", nothing, untrained_weights, "victim"),
]
