"""Figures that stand alone and inline, in light and dark, for eyes that see colours and for those that do not."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tasks.findings import figures
from tasks.findings.figures import COLOURS, SERIES_STYLES, Curve, Dots, Estimated
from tasks.findings.numbers import NATS
from tests.conftest import REPOSITORY

NAMES = ("a", "b", "c")


def curves(name: str = "one") -> str:
    drawn = [
        Curve(f"{series} <&>", style, [[1, 2.0], [2, 1.5 + place]], dots=place > 0)
        for place, (series, style) in enumerate(zip(NAMES, SERIES_STYLES, strict=True))
    ]
    return figures.curves(name, 'A "described" <figure>', "& more", drawn, "step", "loss (nats per token)").svg


def dots() -> str:
    rows = [Dots("wide", [0.5, 0.6], 0.55, [0.5, 0.6]), Dots("narrow", [0.1]), Dots("deep (missing)", [])]
    return figures.dots("5-dots", "Every cell", "", rows, "loss (nats)").svg


ESTIMATED = [
    Estimated("the question", "b - a", -0.5, [-0.6, -0.4]),
    Estimated("placebos", "b - c", 0.1),
    Estimated("placebos", "b - d", 0.2, [0.1, 0.3]),
    Estimated("placebos", "b - e", None),
]


def forest(band: tuple[float, float] | None = (-0.02, 0.02)) -> str:
    return figures.forest("six", "The answer.", ESTIMATED, "difference (nats)", NATS, band=band).svg


ALL = [curves, dots, forest]


def texts(svg: str) -> list[str]:
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")
    ]


@pytest.mark.parametrize("draw", ALL)
def test_every_colour_is_a_variable_with_a_fallback(draw):
    svg = draw()
    fallbacks = {fallback for _, fallback in COLOURS.values()}
    assert set(re.findall(r"#[0-9a-fA-F]{3,8}\b", re.sub(r"(url\(|href=\")#", "", svg))) <= fallbacks
    for name, fallback in re.findall(r"var\(--([\w-]+), (#\w+)\)", svg):
        assert COLOURS[name][1] == fallback
    bare = re.sub(r"var\([^)]*\)", "", svg)
    assert not re.findall(r"(?:fill|stroke): (?!none)[#\w]", bare)


@pytest.mark.parametrize("draw", ALL)
def test_equal_data_give_equal_bytes_whatever_came_before(draw):
    first = draw()
    for other in ALL:
        other()
    assert draw() == first


def test_equal_bytes_in_another_process_and_with_another_matplotlibrc(tmp_path):
    (tmp_path / "matplotlibrc").write_text(
        "axes.facecolor: red\nfont.size: 30\nsvg.fonttype: path\naxes.linewidth: 5\n"
    )
    code = "from tests.tasks.findings import test_figures as t; print(t.curves(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={"MPLCONFIGDIR": str(tmp_path), "PATH": "", "PYTHONHASHSEED": "7", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == curves()


@pytest.mark.parametrize("draw", ALL)
def test_a_figure_is_one_element_without_scripts_styles_or_requests(draw):
    svg = draw()
    assert svg.startswith("<svg ") and svg.rstrip().endswith("</svg>")
    assert not re.search(r"<script|<style|<image|@import|<metadata", svg)
    assert set(re.findall(r"https?://[^\"' ]*", svg)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"\d{4}-\d\d-\d\dT", svg)


def test_text_is_text_and_escaped():
    found = texts(curves())
    assert {"step", "loss (nats per token)", "a <&>", "c <&>"} <= set(found)


def test_a_figure_says_what_it_shows_to_those_who_do_not_see_it():
    root = ElementTree.fromstring(curves())
    assert (root.get("role"), root.get("aria-label")) == ("img", 'A "described" <figure> & more.')


def test_figures_on_one_page_share_no_ids_and_find_their_own():
    one, other = curves("one"), curves("other")
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, other)]
    assert ids[0] and not ids[0] & ids[1]
    for svg, own in zip((one, other), ids, strict=True):
        used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg))
        assert used and {a or b for a, b in used} <= own


def test_series_differ_by_line_and_marker_as_well_as_by_colour():
    for aspect in ("colour", "line", "marker"):
        assert len({str(getattr(style, aspect)) for style in SERIES_STYLES}) == len(SERIES_STYLES)
    dashes = {match for match in re.findall(r"stroke-dasharray: ([\d., ]+)", curves())}
    assert len(dashes) == 2  # the third is solid


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_fallback_colours_are_readable_on_their_paper():
    paper = COLOURS["paper"][1]
    for name in ("ink", "faint", "series-1", "series-2", "series-3"):
        assert contrast(COLOURS[name][1], paper) >= 4.5, name


def test_the_figure_that_answers_draws_the_margin_the_intervals_and_the_first_row_in_colour():
    svg, first = forest(), COLOURS["series-3"][1]
    assert svg.count("fill: var(--grid") == 1 and not forest(band=None).count("fill: var(--grid")
    assert svg.count("LineCollection") == 2, "two of four rows have an interval"
    assert {"the question", "b - a", "placebos", "b - c", "b - d", "b - e", "difference (nats)"} <= set(texts(svg))
    assert texts(svg).count("placebos") == 1
    groups = re.findall(r'<g id="six-((?:LineCollection|line2d)_\d+)">(.*?)</g>', svg, re.DOTALL)
    assert len([name for name, drawn in groups if f"var(--series-3, {first})" in drawn]) == 3, "interval, ends, value"
    assert 'aria-label="The answer. b - a -0.5000 (-0.6000 to -0.4000); b - c +0.1000; ' in svg


def test_nothing_is_written_into_the_home_folder(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    code = """if True:
        import pathlib, sys
        from tasks.findings.figures import Dots, dots
        from tests.flows import answers

        def draws(run, config):
            return {"words": len(dots("x", "", "", [Dots("a", [0.5])], "").svg)}

        answers.count = draws
        assert answers.finished(pathlib.Path(sys.argv[1]), answers.Study(name="it"))[-1].finished
    """
    given = [sys.executable, "-c", code, str(tmp_path / "runs")]
    environment = {"HOME": str(home), "PATH": "", "PREFECT_HOME": str(tmp_path / "prefect")}
    subprocess.run(given, cwd=REPOSITORY, env=environment, timeout=120, check=True)
    assert not list(home.iterdir()) and (tmp_path / "runs" / ".cache" / "matplotlib").is_dir()
