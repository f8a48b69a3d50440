"""Follows what is to be followed at the site until it is killed: as the flow `advance` does while anything is."""

import logging
import sys
import time

from deployments.slurm.cluster.site import read_site
from deployments.slurm.study.follow import Studies
from deployments.slurm.study.looks import Looks
from flows.look import tell

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("ratchet").setLevel(logging.INFO)
    site = read_site()
    studies = Studies(site, Looks(site), tell)
    sys.stdout.write("started!\n")
    sys.stdout.flush()
    while True:
        studies.look()
        time.sleep(0.5)
