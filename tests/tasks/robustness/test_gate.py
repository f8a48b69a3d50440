"""What is edited in a finished study, every marker sealed again, is refused by name: by the audit, or by the last gate.

aggregate recomputes from records and text what a stage only says of itself; the audit asks `model/` again. R3 to R12
are replicas of what the earlier system, or a person in a hurry, would have handed over; N1 to N16 are a reviewer's.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from storage import durable
from storage.errors import CheckFailed
from tests.tasks.resealed import audited_nothing, differs_too_much, unchanged
from tests.tasks.robustness.edited import Stages, aggregated, as_measured, audited, transfer_again, written
from tests.tasks.tiny import finished_study

Row = dict[str, Any]
Edit = Callable[[Stages], None]
Case = tuple[str, Edit, str]
"""What was done, and what is said of it."""
ARMS = ("baseline", "monotonic", "random-signs")
ATTACKED = ("base", *ARMS, "base@0.5")
CLEAN = ("clean_loss_sum_nats", "text_clean_loss_sum_nats")


# ------------------------------------------------------------------------------------------------- how to edit


def put(row: Row, values: Row) -> None:
    """Sets these; a function makes the new value of the old one."""
    for name, value in values.items():
        row[name] = value(row[name]) if callable(value) else value


def result(roles: str, *path: Any, **values: Any) -> Edit:
    """Sets fields of a part of the result of a stage, or of several, as `roles` names them."""

    def edit(stages: Stages) -> None:
        for role in roles.split():
            part = stages[role]["result"]
            for step in path:
                part = part[step]
            put(part, values)

    return edit


def rows(role: str, change: Callable[[Row], Any], *, first: bool = False) -> Edit:
    """Changes the records of a stage, or of all whose names begin so; or the first of each."""

    def edit(stages: Stages) -> None:
        for name, stage in stages.items():
            if name == role or name.startswith(f"{role}-"):
                for row in stage["rows"][: 1 if first else None]:
                    change(row)

    return edit


def record(role: str, **values: Any) -> Edit:
    """Sets fields of the first record of a stage."""
    return rows(role, lambda row: put(row, values), first=True)


def transfer(change: Callable[[Row], Any], **wanted: str) -> Edit:
    """Changes those records of transfer."""
    return rows("transfer", lambda row: change(row) if wanted.items() <= row.items() else None)


def all_of(*edits: Edit) -> Edit:
    def edit(stages: Stages) -> None:
        for one in edits:
            one(stages)

    return edit


def by_token(row: Row, nats: float) -> None:
    row["loss_sum_nats"] += nats * row["tokens_scored"]


def attacked(attack: str) -> str:
    return " ".join(f"{attack}-{model}" for model in ATTACKED)


# ---------------------------------------------------------------------------------------- text and trainings


def other_metrics(role: str, **values: Any) -> Edit:
    """Other numbers wherever the metric rows of a training have them."""

    def edit(stages: Stages) -> None:
        for row in stages[role]["metrics"]:
            put(row, {name: value for name, value in values.items() if name in row})

    return edit


def constrained_baseline(stages: Stages) -> None:
    stages["baseline"]["result"]["constraint"] = stages["monotonic"]["result"]["constraint"]


def for_longer(stages: Stages) -> None:
    rows = stages["monotonic"]["metrics"]
    rows.append({**rows[0], "step": 2 * rows[-1]["step"]})


LOSSES_OF_LIVENESS = ("loss_nats_per_token", "loss_with_means_nats_per_token")
KEPT = "the validation loss of {} is the best of its training"

# fmt: off
TRAININGS: list[Case] = [
    ("r8: twice the steps", for_longer, "monotonic made the steps of its budget"),
    ("all at another rate", other_metrics("baseline", learning_rate=0.5), "the learning rate of baseline at step"),
    ("lower in base", other_metrics("base", validation_loss=2.0), KEPT.format("base")),
    ("n16: other validations", other_metrics("monotonic", validation_loss=1.0), KEPT.format("monotonic")),
    ("no epochs", lambda stages: stages["monotonic"]["metrics"].pop(-2), "monotonic has rows of its epochs"),
    ("not trained", result("base", "validation_losses", unigram=0.1), "the base model is trained (validation perpl"),
    ("n5: better than its best",
     result("monotonic", "sublayers", **dict.fromkeys(LOSSES_OF_LIVENESS, lambda loss: loss - 1)),
     KEPT.format("monotonic")),
]
# fmt: on


# ---------------------------------------------------------------------------------------- test losses and order


def evaluated(change: Callable[[Row], Any], model: str = "monotonic") -> Edit:
    """The records of a model."""
    return rows("evaluation", lambda row: change(row) if row["model"] == model else None)


def not_evaluated(model: str) -> Edit:
    def edit(stages: Stages) -> None:
        found = stages["evaluation"]
        found["rows"] = [row for row in found["rows"] if row["model"] != model]

    return edit


def half_scored(model: str) -> Case:
    def half(row: Row) -> None:
        row["tokens_scored"] //= 2 if row["model"] == model else 1

    scored = f"evaluate scored {model} on every token of the test split"
    return f"r10: half the tokens of {model}", rows("evaluation", half), scored


def stranger(role: str, **values: str) -> Edit:
    return lambda stages: stages[role]["rows"].append({**stages[role]["rows"][0], **values})


def reordered(change: Callable[[Any], Any]) -> Edit:
    """What order says of the monotonic arm."""

    def edit(stages: Stages) -> None:
        for row in stages["order"]["rows"]:
            if row["model"] == "monotonic":
                found = json.loads(row["order"])
                change(found)
                row["order"] = json.dumps(found)

    return edit


def called_unknown(order: Any) -> None:
    order["certificate"]["certified"] = "unknown"
    for sublayer in order["certificate"]["sublayers"]:
        sublayer |= {"certified": "unknown", "counterexample": None, "worst_violation_found": 0.0}


def fewer_ordered(stages: Stages) -> None:
    stages["order"]["rows"] = [row for row in stages["order"]["rows"] if row["model"] != "random-signs"]


def below_nothing(row: Row) -> None:
    row["loss_sum_nats"] = -500.0


# fmt: off
EVALUATION: list[Case] = [
    ("r7: nan", record("evaluation", loss_sum_nats=math.nan), "every loss of evaluate is a finite number: measured "),
    ("r7: infinite", record("uat-base", loss_sum_nats=math.inf), "every loss of uat on base is a finite number: meas"),
    ("n10: below 0", evaluated(below_nothing),
     "no loss of evaluate is below 0: measured loss_sum_nats of monotonic, doc"),
    *(half_scored(model) for model in ("unigram", "untrained", "constrained-untrained")),
    *(
        (f"r10: not {m}", not_evaluated(m), f"scored every model of the study: measured not {m}")
        for m in ("unigram", "base@0.5")
    ),
    ("a stranger", stranger("evaluation", model="an arm of my own"),
     "evaluate scored an arm of my own on every token of the test split"),
    ("an order of fewer", fewer_ordered, "the records hold each model once"),
]
# fmt: on


# ------------------------------------------------------------------------------------------------- the attacks


def elsewhere(row: Row) -> None:
    row["positions"] = [next(place for place in range(99) if place not in row["writable"])]


def renamed(row: Row) -> None:
    row["example_id"] = "f" * 64 if row["example_id"] < "8" else row["example_id"]


def moved(row: Row) -> None:
    free = next(place for place in range(99) if place not in row["writable"])
    row["writable"] = sorted([*row["writable"][1:], free])
    row |= {"positions": row["writable"][: len(row["positions"])], "blind_positions": [], "blind_replacements": []}


def a_replacement_less(stages: Stages) -> None:
    row = next(row for row in stages["hotflip-monotonic"]["rows"] if row["replacements"])
    row["replacements"] = row["replacements"][:-1]


def lost(stages: Stages) -> None:
    del stages["hotflip-monotonic"]["rows"][0]


def cheaper_flips(stages: Stages) -> None:
    rows("hotflip", lambda row: row.update(forward_sequences=1, backward_sequences=0, blind_forward_sequences=1))(
        stages
    )


def less_searched(forwards: int, backwards: int) -> Edit:
    """Every model the same, and blind search as much: only the configuration says otherwise."""
    less, blind = {"forward_sequences": forwards, "backward_sequences": backwards}, forwards + 2 * backwards
    edits = [
        result(attacked("uat"), search, **{name: lambda n, by=by: n - by for name, by in of.items()})
        for search, of in (("gradient", less), ("blind", {"forward_sequences": blind}))
    ]
    return all_of(*edits)


def unread(attack: str, what: str) -> Edit:
    """D16: the window kept the end of a text, and what stood in front was cut off for every model alike."""

    def cut(row: Row) -> None:
        clean = row["clean_loss_sum_nats"]
        if what == "random control":
            row["control_losses_sum_nats"] = [clean] * len(row["control_losses_sum_nats"])
        else:
            row |= {"loss_sum_nats": clean, "budget_losses_sum_nats": [clean] * len(row["budget_losses_sum_nats"])}

    return all_of(rows(attack, cut), lambda stages: transfer_again(stages, attack) if what == "search" else None)


def more_by_less(row: Row) -> None:
    row["budget_losses_sum_nats"] = [row["loss_sum_nats"] + 20] * 2 + [row["loss_sum_nats"]]


def more_by_less_as_searched(row: Row) -> None:
    more_by_less(row)
    row["search_losses_sum_nats"][1:-1] = [row["loss_sum_nats"] + 20] * (len(row["search_losses_sum_nats"]) - 2)


def half_added(row: Row) -> None:
    clean = row["clean_loss_sum_nats"]
    for column in row.keys() & {"loss_sum_nats", "blind_loss_sum_nats"}:
        row[column] = clean + (row[column] - clean) / 2
    for column in row.keys() & {"budget_losses_sum_nats", "control_losses_sum_nats"}:
        row[column] = [clean + (loss - clean) / 2 for loss in row[column]]


def of_hotflip(change: Callable[[Row], Any]) -> Edit:
    """Hotflip of monotonic, and what transfer says of it."""
    return all_of(rows("hotflip-monotonic", change), transfer(change, attack="hotflip", model="monotonic"))


def dearer_than_the_whole(row: Row) -> None:
    row["clean_loss_sum_nats"] = row["text_clean_loss_sum_nats"] + 30


JUDGED = "attacked the documents of attack-evaluation"
SAW = "is what the search of hotflip on {} saw: measured"
SPENT = "uat on each model: forwards, backwards, and forwards of blind search, as configured"
ENDED = "the {} search of uat on monotonic ran to its end"

# fmt: off
ATTACKS: list[Case] = [
    *(
        (
            f"r3: scored tokens of the attacker, {of}",
            rows(of, lambda row: put(row, {"tokens_scored": lambda n: n + 2})),
            s,
        )
        for of in ("uat", "hotflip")
        for s in ["scored the text's own tokens alone"]
    ),
    ("r3: positions that none may write", rows("hotflip-base", elsewhere, first=True), "wrote where it may write"),
    ("r4: other documents, uat", rows("uat", renamed), JUDGED),
    ("r4: other documents, hotflip", rows("hotflip", renamed), JUDGED),
    ("r10: documents that one model lost", lost, f"hotflip on monotonic {JUDGED}: measured 3 rows"),
    ("r8: one model for less", result("uat-monotonic", "gradient", forward_sequences=lambda n: n - 10), SPENT),
    ("r8: one model for longer",
     all_of(*(result("uat-monotonic", of, forward_sequences=lambda n: n + 6) for of in ("gradient", "blind"))),
     SPENT),
    ("r8: fewer forwards", less_searched(10, 0), SPENT),
    ("r8: fewer backwards", less_searched(2, 1), SPENT),
    ("r8: cheaper flips", cheaper_flips, SPENT.replace("uat", "hotflip")),
    ("idle blind search", result(attacked("uat"), "blind", forward_sequences=0), SPENT),
    ("r11: a draw that nobody kept", record("hotflip-base", control_losses_sum_nats=lambda losses: losses[1:]),
     "every draw of the control of hotflip on base is kept"),
    ("r11: a success that its losses do not show", record("hotflip-base", success=lambda done: not done),
     "successes of hotflip on base follow from the losses"),
    ("other open positions", rows("hotflip-monotonic", moved, first=True), "hotflip scored the same tokens for every"),
    ("more flips than allowed",
     rows("hotflip", lambda row: row.update(positions=row["writable"], flips=len(row["writable"]))),
     "wrote as much as it may"),
    ("flips uncounted", rows("hotflip", lambda row: row.update(flips=0)), "the flips of hotflip on base are counted"),
    (
        "positions beyond the text",
        rows(
            "hotflip",
            lambda row: row.update(writable=[1000 + at for at in row["writable"]], positions=[], blind_positions=[]),
        ),
        "positions open to the attacker are of the text",
    ),
    ("one token scored",
     rows("hotflip", lambda row: row.update(writable=list(range(row["text_tokens"] - 1)), tokens_scored=1)),
     "scored at least half"),
    ("budgets lost", rows("hotflip", lambda row: row.update(budget_losses_sum_nats=[row["loss_sum_nats"]])),
     "kept what it had found at each share"),
    ("a replacement less", a_replacement_less, "hotflip on monotonic kept a token for each of its positions, document"),
    ("a clean loss of other tokens", rows("uat", lambda row: put(row, {"clean_loss_sum_nats": lambda loss: loss / 2})),
     "was compared with the clean loss of the same tokens"),
    ("n9: the part costs more than the whole", of_hotflip(dearer_than_the_whole),
     "in hotflip on monotonic the scored part of a text costs no more than the whole"),
    ("a long trigger", result("uat-base", "gradient", "restarts", 0, trigger_ids=lambda ids: ids * 9),
     "the triggers of the gradient search of uat on base are as long as configured"),
    ("a restart less", result("uat-monotonic", "blind", restarts=lambda of: of[1:]), ENDED.format("blind")),
    ("converged", rows("hotflip", lambda row: row.update(budget_losses_sum_nats=[row["loss_sum_nats"]] * 3)),
     SAW.format("base")),
    ("not converged",
     rows("hotflip", lambda row: put(row, {"budget_losses_sum_nats": lambda of: [row[CLEAN[0]]] * 2 + of[2:]})),
     SAW.format("base")),
    ("more by less", rows("hotflip", more_by_less), SAW.format("base")),
    ("more by less as searched", rows("hotflip", more_by_less_as_searched),
     "hotflip on base kept in no round what lowers the loss of document"),
    ("n8: half of what was added", of_hotflip(half_added), SAW.format("monotonic")),
    *(
        (f"r4: unread {what} of {of}", unread(of, what), f"the models read what the {what} of {of} wrote")
        for of in ("uat", "hotflip")
        for what in ("search", "random control")
    ),
]
# fmt: on


# ---------------------------------------------------------------------------------------------------- transfer


def transferred(attack: str, search: str, column: str, value: Any, said: str) -> Case:
    """One record of transfer is not what the attack says."""
    wanted = {"attack": attack, "split": "attack-evaluation", "search": search}
    wanted |= {"found_for": "monotonic", "model": "monotonic"}

    def edit(stages: Stages) -> None:
        next(row for row in stages["transfer"]["rows"] if wanted.items() <= row.items())[column] = value

    return f"transfer of {attack}, {search}: {column} {value}", edit, said


def unwritten(attack: str, search: str) -> Case:
    """What was found for base was never written for the others."""

    def left_out(row: Row) -> None:
        row["loss_sum_nats"] = row["clean_loss_sum_nats"] if row["model"] != "base" else row["loss_sum_nats"]

    of = {"attack": attack, "split": "attack-evaluation", "search": search, "found_for": "base"}
    said = f"other models read what {attack} ({search} search) on base wrote"
    return f"r4: unwritten {attack}, {search}", transfer(left_out, **of), said


def restart(change: str) -> Case:
    """What a restart found and did not keep is tried as what it kept."""

    def edit(stages: Stages) -> None:
        split = "attack-search" if change == "loss on search" else "attack-evaluation"
        wanted = {"split": split, "search": "gradient", "found_for": "monotonic", "model": "monotonic"}
        found = [
            row
            for row in stages["transfer"]["rows"]
            if wanted.items() <= row.items() and row["attack"] not in ("uat", "hotflip")
        ]
        if change == "lacks":
            stages["transfer"]["rows"].remove(found[0])
        for row in found:
            if change == "clean loss":  # a scored part that costs more than the whole is refused already
                row["clean_loss_sum_nats"] -= 0.1 * row["tokens_scored"]
            else:
                by_token(row, 0.5)

    on_search = "what the gradient search on monotonic saw that uat, restart"
    said = on_search if change == "loss on search" else " (gradient search) from monotonic to monotonic on attack-"
    return f"a restart: {change}", edit, said


def other_clean_losses(row: Row) -> None:
    for column in CLEAN:
        row[column] += 0.5 * row["tokens_scored"]


SAME, MEASURED = "scored the same tokens as the attack", "measured what the attack measured"

# fmt: off
TRANSFER: list[Case] = [
    transferred("uat", "gradient", "tokens_scored", 1, SAME),
    transferred("hotflip", "blind", "example_id", "0" * 64, SAME),
    transferred("uat", "blind", "clean_loss_sum_nats", 1.0, MEASURED),
    transferred("hotflip", "gradient", "text_clean_loss_sum_nats", 99.0, MEASURED),
    *(
        transferred(of, by, "loss_sum_nats", 99.0, MEASURED)
        for of in ("uat", "hotflip")
        for by in ("gradient", "blind")
    ),
    transferred("uat", "gradient", "loss_sum_nats", math.nan, "every loss of transfer is a finite number"),
    transferred("hotflip", "gradient", "search", "of somebody else", SAME),
    *(unwritten(attack, search) for attack in ("uat", "hotflip") for search in ("gradient", "blind")),
    *(restart(change) for change in ("lacks", "loss on search", "clean loss")),
    ("a stranger", stranger("transfer", found_for="an arm of my own"), "transfer tried the attacks of the study"),
    (
        "weak where the strongest is chosen",
        all_of(
            transfer(
                lambda row: by_token(row, -0.5),
                attack="uat",
                split="attack-search",
                model="monotonic",
                found_for="monotonic",
            ),
        ),
        "what the gradient search on monotonic saw that uat costs on attack-search follows from transfer",
    ),
    (
        "clean losses that differ from trigger to trigger",
        all_of(
            transfer(
                other_clean_losses,
                attack="uat",
                split="attack-search",
                model="monotonic",
                found_for="base",
                search="blind",
            ),
        ),
        "from base to monotonic on attack-search compares with one clean loss of each text",
    ),
]
# fmt: on

# fmt: off
AUDITS: list[Case] = [
    ("nothing", audited_nothing, "computed numbers of every kind again: measured []"),
    ("a part", result("audit", "kinds", 3, asked=0), "computed numbers of every kind again: measured ["),
    ("differs too much", differs_too_much, "the largest difference of the audit in"),
    ("allows more", result("audit", "kinds", 0, largest_difference=5.0, tolerance=10.0),
     "allowed what it always does: measured {'test losses': 10.0, "),
]
# fmt: on
GATE = [*TRAININGS, *EVALUATION, *ATTACKS, *TRANSFER, *AUDITS]


@pytest.mark.parametrize(("edit", "said"), [case[1:] for case in GATE], ids=[case[0] for case in GATE])
def test_the_last_gate_alone_refuses_what_contradicts_records_text_or_configuration(
    tmp_path: Path, edit: Edit, said: str
):
    stages = as_measured()
    edit(stages)
    with pytest.raises(CheckFailed) as found:
        aggregated(tmp_path / "out", written(tmp_path, stages), finished_study().study)
    assert said in str(found.value) and "measured" in str(found.value) and "required" in str(found.value)


def test_a_loss_that_is_no_number_is_named_with_its_document(tmp_path: Path):
    document = as_measured()["evaluation"]["rows"][0]["example_id"]
    stages = as_measured()
    record("evaluation", loss_sum_nats=math.nan)(stages)
    with pytest.raises(CheckFailed, match=rf"every loss of evaluate is a finite number: measured .*{document}"):
        aggregated(tmp_path / "out", written(tmp_path, stages), finished_study().study)


# ------------------------------------------------------------------------------------------------- other files


def another_arm_s(role: str, path: Path) -> None:
    if role == "monotonic":
        theirs = finished_study().path("train-baseline") / "model" / "model.safetensors"
        (path / "model" / "model.safetensors").write_bytes(theirs.read_bytes())


def of_text(file: str, *path: str, **values: Any) -> Callable[[str, Path], None]:
    """Other values in a description of the text."""

    def change(role: str, folder: Path) -> None:
        if role == "text":
            described = durable.read_json(folder / "text" / file)
            part = described
            for step in path:
                part = part[step]
            part |= values
            durable.write_json(folder / "text" / file, described)

    return change


def other_counts(role: str, path: Path) -> None:
    if role == "text":
        counts = np.load(path / "text" / "unigram.npy")
        np.save(path / "text" / "unigram.npy", counts[::-1])


FILES: list[tuple[str, Callable[[str, Path], None], str]] = [
    ("more test documents", of_text("proof.json", "splits", "test", documents=999), "the test split of setup is that"),
    ("another test split", of_text("proof.json", "splits", "test", digest="0" * 64), "the test split of setup is that"),
    ("more tokens", of_text("validation.json", tokens=10**8), "the packed validation split has the tokens of"),
    ("other counts", other_counts, "unigram.npy are of the train split"),
    ("two arms of the same weights", another_arm_s, "weights of the arms: measured those of baseline and monotonic"),
]


@pytest.mark.parametrize(("change", "said"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_the_last_gate_alone_refuses_files_that_contradict_each_other(
    tmp_path: Path, change: Callable[[str, Path], None], said: str
):
    with pytest.raises(CheckFailed) as found:
        aggregated(tmp_path / "out", written(tmp_path, as_measured(), change), finished_study().study)
    assert said in str(found.value) and "required" in str(found.value)


# --------------------------------------------------------------------------------------------------- the audit


def negated(role: str, path: Path) -> None:
    if role == "monotonic":
        file = path / "model" / "model.safetensors"
        names = durable.read_json(path / "result.json")["constraint"]["layers"]
        tensors = load_file(file)
        save_file(tensors | {f"{name}.weight": -tensors[f"{name}.weight"] for name in names}, file, {"format": "pt"})


def alive(stages: Stages) -> None:
    """N4: a dead arm declared alive."""
    live = stages["monotonic"]["result"]["sublayers"]
    live["loss_with_means_nats_per_token"] = live["loss_nats_per_token"] + 2.5


def triggered(stages: Stages) -> None:
    """N11: other ids than those that were judged, wherever they stand."""
    found, other = stages["uat-monotonic"]["result"]["gradient"], [5, 6, 7]
    was = max(found["restarts"], key=lambda restart: restart["search_loss_nats_per_token"])["trigger_ids"]
    found["budgets"] = {share: other if ids == was else ids for share, ids in found["budgets"].items()}
    for restart in found["restarts"]:
        restart["trigger_ids"] = other if restart["trigger_ids"] == was else restart["trigger_ids"]


def comes_back(stages: Stages) -> None:
    rows("hotflip-monotonic", lambda row: put(row, {"round_trips": lambda done: not done}))(stages)


def more(losses: list[float]) -> list[float]:
    return [loss + 1 for loss in losses]


BY_FORWARDS = "is what the audit computes: measured .* give or take 0.0001 nats per token"
# fmt: off
AUDIT: list[Case] = [
    ("other shares of uat",
     rows("uat-monotonic", lambda row: put(row, {"budget_losses_sum_nats": lambda of: [of[2] + 5] * 2 + of[2:]})),
     f"uat, monotonic, document .*{BY_FORWARDS}"),
    ("other early triggers", result("uat-monotonic", "gradient", "budgets", **{"0.1": [5, 6, 7]}),
     f"uat, monotonic, document .*{BY_FORWARDS}"),
    ("other random triggers", rows("uat-monotonic", lambda row: put(row, {"control_losses_sum_nats": more})),
     f"random triggers, monotonic, document .*{BY_FORWARDS}"),
    ("other random flips", rows("hotflip-monotonic", lambda row: put(row, {"control_losses_sum_nats": more})),
     f"random tokens, monotonic, document .*{BY_FORWARDS}"),
    ("a better base", result("base", "validation_losses", unigram=9.0), f"validation loss of unigram {BY_FORWARDS}"),
    ("a worse beginning", result("base", "validation_losses", untrained=9.0),
     f"validation loss of untrained {BY_FORWARDS}"),
    (
        "n3: a difference from -.030 to +.038",
        all_of(
            transfer(lambda row: by_token(row, 0.1), attack="hotflip", found_for="random-signs", model="monotonic"),
        ),
        rf"transfer of hotflip \(gradient search\) from random-signs to monotonic, document.*{BY_FORWARDS}",
    ),
    ("n4: alive", alive, f"validation loss of monotonic with its sublayers replaced by their means {BY_FORWARDS}"),
    ("n7: 10 % better", evaluated(lambda row: put(row, {"loss_sum_nats": lambda loss: loss * 0.9})),
     f"evaluate, monotonic, document .*{BY_FORWARDS}"),
    ("n11: another trigger", triggered,
     rf"transfer of uat \(gradient search\) from monotonic to base, document.*{BY_FORWARDS}"),
    ("n12: other flips",
     rows("hotflip-monotonic", lambda row: put(row, {"replacements": lambda ids: [id_ - 1 for id_ in ids]})),
     rf"transfer of hotflip \(gradient search\) from monotonic to base, document.*{BY_FORWARDS}"),
    ("fewer rounds", rows("hotflip-monotonic", lambda row: put(row, {"search_losses_sum_nats": lambda saw: saw[1:]})),
     "rounds of hotflip on monotonic"),
    ("found more", rows("hotflip-monotonic", lambda row: put(row, {"search_losses_sum_nats": more})),
     "what hotflip on monotonic found, document"),
    ("comes back", comes_back, "comes back from its text"),
    ("all zeros", result("monotonic", "constraint", share_of_zeros=0.999),
     "share of zeros of the constrained weights of monotonic is what the audit computes"),
    ("r12: no layer", result("monotonic", "constraint", layers=[]), "monotonic keeps signs in the layers of its start"),
    ("r12: no weight", result("monotonic", "constraint", weights_checked=0), "weights checked of the constrained"),
    ("a constrained baseline", constrained_baseline, "baseline keeps signs that a start gave it"),
    ("another rank", result("monotonic", "sublayers", effective_rank=lambda of: dict.fromkeys(of, 3.0)),
     "the rank of .* of monotonic is what the audit computes"),
    ("moved far", result("monotonic", "movement", constrained=9.0), "movement of monotonic, constrained is what"),
    ("moved nowhere told", result("monotonic", "movement", constrained=None), "what monotonic tells of its movement"),
    ("an order proved", reordered(lambda of: of["certificate"].update(certified="yes")),
     "the answer on monotonic is that on its worst sublayer"),
    ("an order of no weights", reordered(lambda of: of["certificate"].update(tensors_checked=0)),
     "what was looked at of monotonic"),
    ("an order of others", reordered(lambda of: of["certificate"].update(variant="mlp_in")),
     "what was looked at of monotonic"),
    ("a proof of all", reordered(lambda of: [one.update(certified="yes") for one in of["certificate"]["sublayers"]]),
     "is proved, and why not|answer on monotonic"),
    ("a refuted order called unknown", reordered(called_unknown), "whether a pair refutes the order of .* of mono"),
    ("less disorder on text", reordered(lambda of: of["on_text"].update(share=0.123)),
     "share of monotonic on text is what"),
]
# fmt: on
WEIGHTS: dict[Callable[[str, Path], None], str] = {
    negated: "in model/ of monotonic have the signs they may have: measured .* signs non-negative",
    another_arm_s: "in model/ of monotonic have the signs they may have|, monotonic, document",
}


@pytest.mark.parametrize(
    ("edit", "change", "said"),
    [
        *((edit, unchanged, said) for _, edit, said in AUDIT),
        *((lambda stages: None, change, said) for change, said in WEIGHTS.items()),
    ],
    ids=[*(case[0] for case in AUDIT), *(change.__name__ for change in WEIGHTS)],
)
def test_the_audit_refuses_what_the_models_do_not_give(
    tmp_path: Path, edit: Edit, change: Callable[[str, Path], None], said: str
):
    stages = as_measured()
    edit(stages)
    inputs = written(tmp_path, stages, change)
    with pytest.raises(CheckFailed) as found:
        audited(tmp_path / "audit", inputs, finished_study().study)
    assert re.search(said, str(found.value)) and "measured" in str(found.value) and "required" in str(found.value)


def test_what_was_not_edited_agrees(tmp_path: Path):
    inputs, study = written(tmp_path, as_measured()), finished_study().study
    found = audited(tmp_path / "audit", inputs, study)
    other = audited(tmp_path / "other", inputs, study, entropy=1)
    assert sum(found.numbers.values()) > 300 and other.numbers == found.numbers and other.drawn_by != found.drawn_by
    assert 0 < found.worst.largest_difference < 1e-6 and 0 < other.worst.largest_difference < 1e-6
    published, folder = aggregated(tmp_path / "out", inputs, study)
    assert published.report == "report.html" and (folder / "table.md").is_file()
