"""The calorimeter study: does masked pretraining help a network that reads 4,760 light sensors, and is a network that
fills in dead sensors better than the mean of their neighbours?

    showers -> look -> mae -> {scratch, scratch-longer, mae-init, raw} x seeds,
        inpainter {scratch, frozen, finetune} x seeds -> judge, export -> audit -> report

Regressors have equal budgets, but for scratch-longer, which has the pretraining's work too; all but raw ones have the
same normaliser. The page below is the only description of the
DAG.

    python -m flows.calorimeter --profile quick
"""

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.calorimeter import stages
from tasks.calorimeter.study import Study
from tasks.findings.sweep.configuration import Swept
from tasks.stage.run import Stage

SHOWERS = Stage("calorimeter-showers", stages.ShowersConfig, "tasks.calorimeter.showers:showers", needs="cpu")
LOOK = Stage("calorimeter-look", stages.LookConfig, "tasks.calorimeter.look:look", version=2, needs="cpu")
MAE = Stage("calorimeter-mae", stages.FillConfig, "tasks.calorimeter.fit:fill", version=3)
REGRESS = Stage("calorimeter-regress", stages.RegressConfig, "tasks.calorimeter.fit:regress", version=2)
INPAINT = Stage("calorimeter-inpaint", stages.FillConfig, "tasks.calorimeter.fit:fill", version=3)
JUDGE = Stage("calorimeter-judge", stages.JudgeConfig, "tasks.calorimeter.judge:judge", version=2)
EXPORT = Stage("calorimeter-export", stages.ExportConfig, "tasks.calorimeter.export:export", version=2, needs="cpu")
AUDIT = Stage("calorimeter-audit", stages.EndConfig, "tasks.calorimeter.audit:audit", version=4, needs="cpu")
REPORT = Stage("calorimeter-report", stages.EndConfig, "tasks.calorimeter.report:report", version=8, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage. Roles of what has a seed end with it."""
    data = stage(SHOWERS, stages.ShowersConfig.of(study))
    look = stage(LOOK, stages.LookConfig.of(study, max_absolute_z=study.limits.largest), data=data)
    seen = {"data": data, "look": look}
    masks = {"mask_seed": study.seed}  # all are judged on the same
    pretraining = {"arm": "scratch", "filling": study.mae, "budget": study.mae_budget, "seed": study.seed}
    mae = stage(MAE, stages.FillConfig.of(study, **pretraining, **masks), **seen)

    longer = {"budget": study.budget.with_work_of(study.mae_budget)}
    regressors: dict[str, Handle] = {}
    for seed in study.seeds:
        for arm in stages.REGRESSORS:
            more = longer if arm == "scratch-longer" else {}
            config = stages.RegressConfig.of(study, arm=arm, seed=seed, cell=f"{arm}, seed {seed}", **more)
            start = {"start": mae} if arm == "mae-init" else {}
            regressors[f"{arm}-{seed}"] = stage(REGRESS, config, **seen, **start)
    fillers = {"mae": mae}
    for seed in study.seeds:
        for arm in stages.INPAINTERS:
            asked = {"arm": arm, "filling": study.inpaint, "budget": study.inpaint_budget, **masks}
            filling = stages.FillConfig.of(study, **asked, seed=seed, cell=f"{arm}, seed {seed}")
            start = {} if arm == "scratch" else {"start": mae}
            fillers[f"inpaint-{arm}-{seed}"] = stage(INPAINT, filling, **seen, **start)

    judged = stage(JUDGE, stages.JudgeConfig.of(study), data=data, **fillers)
    export = stage(EXPORT, stages.ExportConfig.of(study), data=data, **regressors)
    ends = {**seen, "judged": judged, "export": export, **fillers, **regressors}
    audit = stage(AUDIT, stages.EndConfig.of(study), **ends)

    return stage(REPORT, stages.EndConfig.of(study), **ends, audit=audit)


METRICS_OF_A_SWEEP = [
    *(
        Swept(title=of, numbers=f"regressors.{{arm}}.{of}", higher=False)
        for of in ("u_cm", "v_cm", "w_cm", "energy_mev")
    ),
    *(
        Swept(
            title=f"error of {of} sensors",
            numbers=f"inpainter.{{arm}}_{of}",
            higher=False,
            pairs=[["mae", "neighbour_mae"]],
        )
        for of in ("bright", "dim")
    ),
]

calorimeter = study_flow(page)


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.calorimeter"))
