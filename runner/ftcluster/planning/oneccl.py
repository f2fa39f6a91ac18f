"""How oneCCL is told which cores it communicates with. Pure functions only.

oneCCL carries collectives out in threads of its own, the workers, which poll all the time. Its
guide asks for cores that do not compute (oneCCL Developer Guide, Execution of Communication
Operations). One worker a rank, which is oneCCL's own default; it has the last of the rank's cores,
where oneCCL's automatic choice has it too.
"""

from collections.abc import Sequence

WORKERS = 1  # of each rank


def variables() -> dict[str, str]:
    """What tells oneCCL on all hosts."""
    return {"CCL_WORKER_COUNT": str(WORKERS)}


def host_variables(workers: Sequence[str]) -> dict[str, str]:
    """What tells oneCCL on one host.

    CCL_WORKER_AFFINITY has the workers' cores of all ranks of the host that reads it, by local rank
    (oneCCL Developer Guide, Environment Variables).

    Args:
        workers: the CPUs of each local rank's workers.
    """
    return {"CCL_WORKER_AFFINITY": ",".join(workers)}
