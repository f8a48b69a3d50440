"""Does pretraining on the digits 0 to 4 help a small network to tell 5 to 9 apart?"""

from itertools import product
from math import log
from typing import Annotated, Literal

import ratchet as r


@r.stage(needs="cpu", torch=False, packages=("scikit-learn",))
def data(run, seed: int, per_digit: Annotated[int, r.knob("Pictures of each digit.", ge=10, le=170)] = 40):
    """Pictures of 8 x 8 pixels, as many of each digit."""
    import numpy as np
    from safetensors.numpy import save_file
    from sklearn.datasets import load_digits

    pictures, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(digits))
    kept = np.concatenate([order[digits[order] == digit][:per_digit] for digit in range(10)])
    with run.publish_file("data.safetensors") as file:
        save_file({"pictures": (pictures[kept] / 16).astype(np.float32), "digits": digits[kept]}, file)
    return {"pictures": len(kept)}


def split(data, first, fold, folds):
    """Pictures and numbers of five digits, from `first` on: those to learn from, and those of the fold."""
    import numpy as np
    from safetensors.numpy import load_file

    kept = load_file(data.path / "data.safetensors")
    pictures, digits = kept["pictures"], kept["digits"] - first
    ours, held_out = (digits >= 0) & (digits < 5), np.arange(len(digits)) % folds == fold
    return [(pictures[rows], digits[rows]) for rows in (ours & ~held_out, ours & held_out)]


def network():
    from torch import nn

    seen = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(seen, nn.Linear(144, 5))


def trained(run, model, known, unseen, budget, seed):
    """A function of a model and of some rows says how well it does on each of them."""
    from torch.nn.functional import cross_entropy

    return r.train(
        run,
        model,
        known,
        loss=lambda model, pictures, digits: cross_entropy(model(pictures), digits, reduction="none"),
        validate=unseen,
        metrics={"accuracy": lambda model, pictures, digits: model(pictures).argmax(1) == digits},
        higher=["accuracy"],
        trivial={"uniform guess": log(5)},
        budget=budget,
        seed=seed,
    )


@r.stage()
def pretrain(
    run,
    data,
    seed: int,
    pretraining: Annotated[r.Budget, r.knob("Of the pretraining.")] = r.Budget(steps=100, learning_rate=0.01),
):
    return trained(run, network(), *split(data, 0, 0, 5), pretraining, seed)


@r.stage()
def finetune(
    run,
    data,
    base,
    how: Literal["scratch", "full", "frozen"],
    fold: int,
    folds: int,
    seed: int,
    budget: Annotated[r.Budget, r.knob("Of each network of an arm.")] = r.Budget(steps=40, learning_rate=0.003),
):
    """From nothing, from what the base sees, or with that kept as it is."""
    from safetensors.torch import load_file

    model = network()
    if how != "scratch":
        kept = load_file(base.path / "model" / "model.safetensors")
        model.load_state_dict({name: kept[name] for name in kept if name.startswith("0.")}, strict=False)
    model[0].requires_grad_(how != "frozen")
    return trained(run, model, *split(data, 5, fold, folds), budget, seed)


@r.stage(needs="cpu", torch=False, packages=("scikit-learn",))
def ridge(run, data, folds: int, penalties: Annotated[list[float], r.knob("Penalties of the ridge.")] = [0.1, 1, 10]):
    """A method without layers. Each penalty and fold is kept by itself: a kill costs one."""
    from sklearn.linear_model import RidgeClassifier

    for penalty, fold in run.resume(product(penalties, range(folds)), unit="fits"):
        known, unseen = split(data, 5, fold, folds)
        run.row(penalty=penalty, accuracy=float(RidgeClassifier(alpha=penalty).fit(*known).score(*unseen)))
    rows = run.rows()
    means = [sum(row["accuracy"] for row in rows if row["penalty"] == penalty) / folds for penalty in penalties]
    return {"accuracy": max(means), "penalty": penalties[means.index(max(means))]}


@r.study
def digits(folds: Annotated[int, r.knob("Folds of each arm.", ge=2)] = 3):
    pictures = data()
    base = pretrain(pictures)
    arms = {
        how: [finetune(pictures, base, how=how, fold=fold, folds=folds) for fold in range(folds)]
        for how in ("scratch", "full", "frozen")
    }
    arms["ridge"] = [ridge(pictures, folds=folds)]
    return r.report(arms, metric="accuracy", compare=("full", "scratch"), question="Does pretraining help?")
