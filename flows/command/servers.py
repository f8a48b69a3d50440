"""`ratchet ui`, `deploy` and `deployments`: studies as Prefect deployments, on a server or as a file."""

import argparse
import signal
from pathlib import Path
from typing import Any

from deployments.dag.page import load_page
from deployments.dag.sources import page_names
from deployments.prefect.generate import (
    STUDIES,
    Profile,
    description_of,
    prefect_yaml,
    shared_deployments,
    study_deployments,
)
from deployments.study_flow import require_flow
from flows.command import settings
from flows.command.terminal import refuse, show
from storage.errors import BadInput, did_you_mean
from tasks.stage import outcome


def ui(options: argparse.Namespace) -> int:
    """Keeps Prefect's UI open until Ctrl-C or SIGTERM; 1 when its worker ends by itself."""
    from deployments.ui import WorkerEnded, keep_ui

    profiles = _profiles(options.study, options.profile)

    def ready(address: str) -> None:
        show(f"Prefect UI: {address}", style="bold")
        show("  who has this whole address can run commands as you: give it to nobody. It holds until this ends")
        show("  there: Deployments, then Run, starts a study; Runs shows it")
        show("  Ctrl-C ends this; a study that runs saves first, and goes on when it is started again")

    def end(*_: object) -> None:
        show("ending: a study that runs saves first ...")
        raise KeyboardInterrupt

    show("starting Prefect, its UI, and a worker that runs one study at a time ...")
    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)
    try:
        keep_ui(profiles, Path("runs"), options.port, ready)
    except KeyboardInterrupt:
        show("ended")
    except WorkerEnded as error:
        return refuse(str(error), outcome.FAILED.exit_code)
    return 0


def print_deployments(options: argparse.Namespace) -> int:
    """Prints the text of `prefect.yaml`."""
    profiles = _profiles(options.study, options.profile)
    return show(prefect_yaml(profiles, with_stages=options.study is None).rstrip())


def deploy_studies(options: argparse.Namespace) -> int:
    """Makes what every study needs, and the named deployments; without names those of all studies."""
    names, files = options.names, options.profile
    if files and len(names) != 1:
        raise BadInput("--profile is a profile of one study: name the study, and no other")
    wanted: dict[str, dict[str, Any]] = {}
    for name in names or page_names():
        place, _, profile = (name, "", "") if name.endswith(".py") else name.partition("/")
        made = {f"{place}/{each['name']}": each for each in study_deployments(_profiles(place, files))}
        if profile and name not in made:
            raise BadInput(f"{place} has no deployment {profile!r}; {did_you_mean(name, made)}it has {', '.join(made)}")
        wanted |= {name: made[name]} if profile else made
    return _deploy([*shared_deployments(), *wanted.values()])


def _deploy(deployments: list[dict[str, Any]]) -> int:
    """Makes the pool and these deployments on the server that is there, and prints the name of each."""
    from prefect.client.orchestration import get_client
    from prefect.settings import temporary_settings

    from deployments.deploy import deploy, make_pool
    from deployments.prefect.embedded import server_here
    from deployments.prefect.presence import require_server

    there = server_here()
    with temporary_settings(there.settings if there else {}):
        require_server("ratchet deploy")
        with get_client(sync_client=True) as client:
            make_pool(client, STUDIES)
            for name in deploy(client, deployments):
                show(name)
    return 0


def _profiles(place: str | None, files: list[str]) -> list[Profile]:
    """Profiles of all studies, or of one and of files outside its folder. BadInput for one that cannot be started."""
    if place is None and files:
        raise BadInput("--profile is a profile of one study: name the study too")
    profiles = []
    for page in [load_page(name) for name in ([place] if place else page_names())]:
        require_flow(page)
        for name in [*(settings.profile_names(page) if page.profiles.name == page.name else []), *files]:
            settings.read_study(page, name, [], None)
            file = settings.profile_file(page, name)
            values = settings.profile_values(page, name)
            profiles.append(Profile(page, file.stem, description_of(file), values))
        if not profiles:
            profiles.append(Profile(page, page.name, page.description, {"name": page.name}))
    return profiles
