"""What a stage shows in the Prefect UI."""

import base64
import re

from deployments.prefect.artifacts import as_markdown


def test_figures_are_one_markdown_that_holds_them_with_what_they_show(tmp_path):
    svgs = [f'<svg xmlns="http://www.w3.org/2000/svg" aria-label="It shows é &amp; {i}."></svg>'.encode() for i in "ab"]
    files = [tmp_path / f"figure-{i}.svg" for i in range(2)]
    for file, svg in zip(files, svgs, strict=True):
        file.write_bytes(svg)
    shown = as_markdown(files)
    images = re.findall(r"!\[(figure-\d)\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", shown)
    assert [(name, base64.b64decode(data)) for name, data in images] == [("figure-0", svgs[0]), ("figure-1", svgs[1])]
    assert shown.index("It shows é & a.") < shown.index("figure-1") < shown.index("It shows é & b.")
