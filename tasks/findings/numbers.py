"""Formats of numbers: estimates with their intervals, differences with their signs."""

from collections.abc import Callable, Sequence

from tasks.findings.statistics.resampling import Estimate

MOST_PERPLEXITY = 1e300
"""Just below e^700, at which perplexities are capped."""

NATS, SHARE, RATE = "{:+z.4f}".format, "{:+z.2%}".format, "{:.1%}".format
"""Formats of increases of a loss, relative increases and rates; zero has no minus."""


def rate_points(share: float) -> str:
    """A difference of rates, in percentage points."""
    return f"{100 * share:+z.1f}"


def perplexity(value: float) -> str:
    """A perplexity; a model that diverged has one of hundreds of digits, and beyond e^700 it was capped."""
    if value >= MOST_PERPLEXITY:
        return "> 1e300"
    return f"{value:,.2f}" if value < 1e6 else f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def span(interval: Sequence[float] | None, form: Callable[[float], str]) -> str:
    """An interval as text; documents of a single source have none, and one without width is no interval."""
    if interval is None:
        return "none (one source)"
    return "-" if interval[0] == interval[1] else " to ".join(map(form, interval))


def estimate(number: Estimate, form: Callable[[float], str]) -> str:
    """An estimate and its interval, as in a sentence."""
    return f"{form(number.value)} (interval {span(number.interval, form)})"


def value_and_span(number: Estimate | None, form: Callable[[float], str]) -> list[str]:
    """An estimate and its interval, as two cells of a table."""
    return ["not known", "-"] if number is None else [form(number.value), span(number.interval, form)]


def p_value(value: float | None) -> str:
    """A p-value as a cell of a table; "-" for what was not tested. Near 0.05 the fourth digit decides."""
    if value is None or value < 0.001:
        return "-" if value is None else "< 0.001"
    return f"{value:.4f}" if 0.0495 <= value < 0.0505 and value != 0.05 else f"{value:.3f}"


def smallest(number: Estimate) -> str:
    """The smallest difference that could have been shown, as a cell of a table."""
    return "-" if number.smallest_shown is None else f"{number.smallest_shown:.4f}"


def percent(share: float) -> str:
    """A level as it was configured: 95%, 97.5%."""
    return f"{100 * share:g}%"


def texts_of(documents: int, sources: int) -> str:
    """The size of a sample: documents, and the sources that count as one draw each."""
    return f"{documents:,} text{'s' * (documents != 1)} of {sources:,} source{'s' * (sources != 1)}"


def holds_zero(interval: Sequence[float] | None) -> bool:
    """True where an estimate may as well be zero; False for an interval that does not exist."""
    return interval is not None and interval[0] <= 0 <= interval[1]
