"""Python imports this file as it starts, in each process of a test run: tests/apart/__init__.py says what for."""

import os
import sys

PLACES, KEPT, NOTED = "RATCHET_TESTS_REFUSED", "RATCHET_TESTS_KEPT", "RATCHET_TESTS_NOTED"
EVENTS = {"open": 1, "os.listdir": 1, "os.scandir": 1, "os.mkdir": 1, "os.remove": 1, "os.chmod": 1}
EVENTS |= {"os.rename": 2, "os.link": 2, "os.symlink": 2, "sqlite3.connect": 1}
"""How many of what Python tells of each event are paths."""
LISTS = ("os.listdir", "os.scandir")


def refuse() -> None:
    """From now on this process opens, lists and changes nothing in PLACES, but in what of KEPT lies below them."""
    refused, kept = (
        tuple(f"{place.rstrip('/')}/" for place in os.environ[name].split(os.pathsep)) for name in (PLACES, KEPT)
    )
    noted = os.environ[NOTED]
    below = {place: tuple(one for one in kept if one.startswith(place) and one != place) for place in refused}

    def hook(event: str, given: tuple[object, ...]) -> None:
        for path in given[: EVENTS.get(event, 0)]:
            if not isinstance(path, str | bytes) or (os.sep not in os.fsdecode(path) and event not in LISTS):
                continue  # one part may be a name in an open folder, as shutil.rmtree has it
            name = os.path.abspath(os.fsdecode(path)) + "/"
            for place, excepted in below.items():
                if name.startswith(place) and not name.startswith(excepted):
                    descriptor = os.open(noted, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                    os.write(descriptor, f"{os.environ.get('PYTEST_CURRENT_TEST')}: {event} {name[:-1]}\n".encode())
                    os.close(descriptor)
                    raise PermissionError(f"a test looks at {name[:-1]}, which is a person's: give a folder of its own")

    sys.addaudithook(hook)


if PLACES in os.environ and __name__ == "sitecustomize":
    refuse()
