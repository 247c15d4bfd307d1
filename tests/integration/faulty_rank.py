"""What the ranks of these tests run: the worker, after a fault if the test asks for one.

A fault of seeded_faults.py is put in before the worker starts; one of deadly_faults.py happens in rank 1, or in the
only one, when the model and the engine are there. left_collectives.py is no fault: it only has every rank leave what
it recorded.
"""

import os
from pathlib import Path

import bench.worker.main
from bench.worker.loop import Loop


def main(path):
    file = Path(os.environ["ZEROSTAGE_TEST_FAULT_FILE"])
    if fault := file.read_text():
        import deadly_faults
        import left_collectives
        import seeded_faults

        if fault == left_collectives.NAME:
            left_collectives.put_in(file.parent)
        elif fault in seeded_faults.FAULTS:
            seeded_faults.FAULTS[fault]()
        elif os.environ["RANK"] == "1" or os.environ["WORLD_SIZE"] == "1":
            counting_pass = Loop.counting_pass

            def broken(self, *arguments):
                deadly_faults.FAULTS[fault]()
                return counting_pass(self, *arguments)

            Loop.counting_pass = broken
    bench.worker.main.main(path)
