"""Which cores oneCCL communicates with, and how it is told. Pure functions only.

oneCCL carries collectives out in threads of its own, the workers, and its guide asks for cores that
do not compute (oneCCL Developer Guide, Execution of Communication Operations). One worker a rank,
which is oneCCL's own default.
"""

from dataclasses import dataclass

WORKERS = 1  # of each rank


@dataclass(frozen=True)
class CoreSplit:
    """The cores of a host, shared by its ranks and split between computing and communicating.

    Cores count from 0, each rank has the next of them, and it communicates with the last of its
    own, where oneCCL's automatic choice has them too.

    Attributes:
        computing: for each local rank the cores of its compute threads.
        communicating: for each local rank the cores of its workers.
    """

    computing: tuple[tuple[int, ...], ...]
    communicating: tuple[tuple[int, ...], ...]


def split_cores(ranks: int, cores_per_rank: int) -> CoreSplit:
    """Share a host's cores.

    A rank that has one core only computes and communicates with it.
    """
    shares = [range(rank * cores_per_rank, (rank + 1) * cores_per_rank) for rank in range(ranks)]
    return CoreSplit(
        computing=tuple(tuple(share[:-WORKERS] or share) for share in shares),
        communicating=tuple(tuple(share[-WORKERS:]) for share in shares),
    )


def variables(split: CoreSplit) -> dict[str, str]:
    """What tells oneCCL and Intel MPI, one set for all hosts.

    CCL_WORKER_AFFINITY has the workers' cores of all ranks of a host (oneCCL Developer Guide,
    Environment Variables); I_MPI_PIN_DOMAIN one mask of cores a rank, exactly as many as the host
    has ranks (Intel MPI Developer Reference, Interoperability with OpenMP).
    """
    workers = [core for cores in split.communicating for core in cores]
    masks = [hex(sum(1 << core for core in cores)) for cores in split.computing]
    return {
        "CCL_WORKER_COUNT": str(WORKERS),
        "CCL_WORKER_AFFINITY": ",".join(map(str, workers)),
        "I_MPI_PIN_DOMAIN": f"[{','.join(masks)}]",
    }
