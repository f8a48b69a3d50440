"""The work of letters.py: its stages are walked and checked, and not run."""


def text(run, config): ...


def train(run, config, text): ...


def report(run, config, text, **networks): ...
