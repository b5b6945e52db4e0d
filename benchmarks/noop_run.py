"""The least that a Dagster run over the index costs: `python -m benchmarks.noop_run`, in a workspace's environment.

A trivial asset, in the instance of DAGSTER_HOME, that imports LanceDB and opens the tables of the folder `index`
beside the settings file. Started by benchmarks/refresh.py.
"""

import logging
import os
from pathlib import Path

import dagster as dg


@dg.asset
def opened_tables() -> None:
    """Opens every table."""
    import lancedb

    connection = lancedb.connect(str(Path(os.environ["CTX_CONFIG"]).parent / "index"))
    for name in connection.list_tables().tables:
        connection.open_table(name)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    jobs = [dg.define_asset_job("noop", selection=["opened_tables"], executor_def=dg.in_process_executor)]
    job = dg.Definitions(assets=[opened_tables], jobs=jobs).resolve_job_def("noop")
    with dg.DagsterInstance.get() as instance:
        job.execute_in_process(
            instance=instance, run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        )
