def report(run, config, events, look, overfit, trained, **given):
    return {"x": 1}
