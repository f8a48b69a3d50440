"""The calorimeter study: does masked pretraining help a network that reads 4,760 light sensors, and is a network that
fills in dead sensors better than the mean of their neighbours?

    showers -> look -> mae -> {scratch, scratch-longer, mae-init, raw} x seeds,
        inpainter {scratch, frozen, finetune} x seeds -> judge, export -> audit -> report

Regressors have equal budgets, but for scratch-longer, which has the pretraining's work too; all but raw ones have the
same normaliser. The page below is the only description of the DAG.

    python -m flows.calorimeter --profile quick
"""

from deployments.dag.walk import Handle
from deployments.functions import Stage, study
from tasks.calorimeter import stages
from tasks.calorimeter.stages import Study
from tasks.findings.sweep.configuration import Swept

SHOWERS = Stage("calorimeter-showers", stages.ShowersConfig, "tasks.calorimeter.showers:showers", needs="cpu")
LOOK = Stage("calorimeter-look", stages.LookConfig, "tasks.calorimeter.fit:look", version=3, needs="cpu")
MAE = Stage("calorimeter-mae", stages.FillConfig, "tasks.calorimeter.fit:fill", version=3)
REGRESS = Stage("calorimeter-regress", stages.RegressConfig, "tasks.calorimeter.fit:regress", version=2)
INPAINT = Stage("calorimeter-inpaint", stages.FillConfig, "tasks.calorimeter.fit:fill", version=3)
JUDGE = Stage("calorimeter-judge", stages.JudgeConfig, "tasks.calorimeter.judge:judge", version=3)
EXPORT = Stage("calorimeter-export", stages.ExportConfig, "tasks.calorimeter.fit:export", version=2, needs="cpu")
AUDIT = Stage("calorimeter-audit", stages.EndConfig, "tasks.calorimeter.audit:audit", version=7, needs="cpu")
REPORT = Stage("calorimeter-report", stages.EndConfig, "tasks.calorimeter.report:report", version=10, needs="cpu")


@study
def calorimeter(study: Study) -> Handle:
    """The study, top to bottom; returns the stage call whose answer is shown."""
    data = SHOWERS()
    look = LOOK(data=data, max_absolute_z=study.limits.max_absolute_z)
    seen, masks = {"data": data, "look": look}, {"mask_seed": study.seed}  # all are judged on the same
    mae = MAE(seen, arm="scratch", filling=study.mae, budget=study.mae_budget, **masks)

    longer = study.budget.with_work_of(study.mae_budget)
    regressors = {
        arm: {
            seed: REGRESS(
                seen | ({"start": mae} if arm == "mae-init" else {}),
                budget=longer if arm == "scratch-longer" else study.budget,
                arm=arm, seed=seed, cell=f"{arm}, seed {seed}",
            )
            for seed in study.seeds
        }
        for arm in stages.REGRESSORS
    }  # fmt: skip
    fillers = {
        f"inpaint-{arm}": {
            seed: INPAINT(
                seen | ({} if arm == "scratch" else {"start": mae}),
                filling=study.inpaint, budget=study.inpaint_budget, **masks,
                arm=arm, seed=seed, cell=f"{arm}, seed {seed}",
            )
            for seed in study.seeds
        }
        for arm in stages.INPAINTERS
    }  # fmt: skip
    judged = JUDGE(fillers, data=data, mae=mae)
    export = EXPORT(regressors, data=data)
    ends = {**seen, "judged": judged, "export": export, "mae": mae, **fillers, **regressors}
    return REPORT({**ends, "audit": AUDIT(ends)})


PAIRS = [["mae", "neighbour_mae"]]
TARGETS, LIGHT = ("u_cm", "v_cm", "w_cm", "energy_mev"), ("bright", "dim")
METRICS_OF_A_SWEEP = [
    *(Swept(title=target, numbers=f"regressors.{{arm}}.{target}", higher=False) for target in TARGETS),
    *(
        Swept(title=f"error of {light} sensors", numbers=f"inpainter.{{arm}}_{light}", higher=False, pairs=PAIRS)
        for light in LIGHT
    ),
]


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.calorimeter"))
