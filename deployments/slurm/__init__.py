"""SLURM as a Prefect work pool of type `slurm`; Prefect finds `worker` by the entry point `prefect.collections`."""
