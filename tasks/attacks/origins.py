"""Where the numbers come from that every study of attacks has."""

from tasks.findings.final_results import Origins

ATTACKS, MODELS = "records of the attacks and of transfer", "records of evaluate"
SEARCH = "the search alone tells how it came there; a gate holds its cost against the configuration"
OF_ATTACKS = Origins(
    computed={
        **dict.fromkeys(("seed*", "attacks.*.attack.*", "primary.primary.*"), "stage.json"),
        **dict.fromkeys(("primary.*", "attacks.*", "transfer.*"), ATTACKS),
        **dict.fromkeys(("models.*", "differences.*"), MODELS),
        "secondary.*": f"{MODELS}, {ATTACKS}",
        "arms.*": "stage.json, metrics.jsonl and the digests of model/",
        "base.*": "stage.json and files of model/",
    },
    asked={
        **dict.fromkeys(("attacks.*.effects.*", "attacks.*.differences.*", "attacks.*.at_equal_loss*"), "transfers"),
        **dict.fromkeys(("attacks.*.attacked_by.*", "attacks.*triggers.*", "transfer.*", "primary.*"), "transfers"),
        **dict.fromkeys(("attacks.*_increase_nats_per_token*", "attacks.*control*"), "losses under triggers"),
        **dict.fromkeys(("attacks.hotflip.flips.*", "attacks.hotflip.round_trips*"), "losses under flips"),
        **dict.fromkeys(("models.*loss_nats_per_token", "models.*.perplexity", "differences.*"), "test losses"),
        **dict.fromkeys(("arms.*.sublayers.loss*", "arms.*.alive_share"), "losses of liveness"),
        "arms.*.sublayers.effective_rank.*": "ranks",
        "arms.*.constraint*": "signs",
        "arms.*.movement*": "movement",
        "order.*": "order",
        "base.trained_check.*": "validation losses",
    },
    not_asked={
        "configuration.*": "a copy of the study's keys; each stage's own stage.json says what it did",
        "arms.*.weights_digest": "weights that are changed so little that no loss shows it are not seen",
        "arms.*.best_step": "metrics.jsonl alone tells the course of a training",
        **dict.fromkeys(("attacks.uat.costs.*", "attacks.*.rank_correlation.*", "attacks.*.curves.*.loss*"), SEARCH),
        "order.*.pairs_tried": "the search for a fall alone tells how many pairs it tried",
        "base.init_from.*": "the run whose weights the base model began with is named, and not read",
    },
)
