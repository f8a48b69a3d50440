"""A report opens from the UI's link, and nothing else does."""

from pathlib import Path

import httpx
import pytest
from prefect.settings import PREFECT_HOME, temporary_settings

from deployments.prefect.report_pages import link_of


@pytest.fixture
def report(tmp_path: Path) -> Path:
    for folder in ("a run", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "report.html").write_text(folder)
    (tmp_path / "a run/linked.html").symlink_to(tmp_path / "other/report.html")
    (tmp_path / "a run/table.md").write_text("attempts")
    return tmp_path / "a run/report.html"


def test_a_report_that_was_shown_opens_in_a_sandbox_and_no_other_file_does(prefect_server, report):
    link, base = link_of(report, prefect_server), prefect_server.removesuffix("/api")
    page = httpx.get(base + link)
    assert page.text == "a run" and page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("sandbox ")
    assert page.headers.get_list("content-security-policy")[1] == "frame-ancestors 'none'"
    assert "allow-same-origin" not in page.headers["content-security-policy"]
    assert httpx.get(base + link.replace("report.html", "table.md")).text == "attempts", "which it links"
    signed = link.split("/")[2]
    elsewhere = ("a%20run/linked.html", "a%20run/none.html", "other/report.html", "a%20run/%2e%2e/other/report.html")
    for path in [*(f"{report.parents[1]}/{name}" for name in elsewhere), "/etc/passwd"]:
        for signature in (signed, "0" * 64):
            answer = httpx.get(f"{base}/ratchet-report/{signature}{path}")
            assert answer.status_code == 404 and "a run" not in answer.text


def test_there_is_no_link_where_the_server_is_not_ours(prefect_server, report, tmp_path):
    with temporary_settings({PREFECT_HOME: tmp_path / "another"}):
        assert link_of(report, prefect_server) == ""
    assert (tmp_path / "another/ratchet-report.key").stat().st_mode & 0o777 == 0o600
    assert link_of(report, "http://127.0.0.1:9/api") == ""
