"""What docs/running.md shows of a notification: typed once, a study's end reaches a channel."""

import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue

from prefect import flow
from prefect.settings import temporary_settings

from deployments.prefect.embedded import send_what_waits, started_server
from tests.conftest import REPOSITORY

TOLD: Queue[str] = Queue()


class Channel(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        TOLD.put(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_automation_of_the_docs_tells_the_end_of_a_study_and_its_cause(own_prefect_home):
    page = (REPOSITORY / "docs/running.md").read_text()
    match = re.search(r"## Being told.*?```python\n(.*?)```", page, re.DOTALL)
    assert match
    with HTTPServer(("127.0.0.1", 0), Channel) as channel:
        threading.Thread(target=channel.serve_forever, daemon=True).start()
        typed = match[1].replace("https://chat.example.org/hook", f"http://127.0.0.1:{channel.server_port}/")
        assert typed != match[1]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with started_server(own_prefect_home / "log", port) as server, temporary_settings(server.settings):
            exec(compile(typed, "docs/running.md", "exec"), {})

            @flow(flow_run_name="mine")
            def study() -> None:
                raise ValueError("the disk is full")

            study(return_state=True)
            send_what_waits()
            told = TOLD.get(timeout=300)
        channel.shutdown()
    assert told.startswith("mine: Failed ") and "the disk is full" in told
