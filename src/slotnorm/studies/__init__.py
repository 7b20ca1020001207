"""Many runs: trained side by side, and each one's rows made.

In come experiments and folders of runs; out go finished runs and, beside each, the rows that reports read.
"""

from slotnorm.studies import ray as ray  # launchers are known by existing
from slotnorm.studies import slurm as slurm
