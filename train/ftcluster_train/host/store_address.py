"""Where the store of torch's own rendezvous listens. Standard library only, until torch is there.

torch listens at all addresses of the host, and the store has no authentication.
"""

import contextlib
import importlib
from typing import Any

RENDEZVOUS = "torch.distributed.rendezvous"


def listen_at_one_address() -> None:
    """Have the store of `init_process_group` listen at the address that the ranks are given."""
    from ftcluster_train.comm.connectivity import listen  # not before it is needed

    rendezvous: Any = importlib.import_module(RENDEZVOUS)
    store = rendezvous.TCPStore

    def at_one_address(
        host_name: str, port: int, world_size: int | None = None, is_master: bool = False,
        *more: Any, **words: Any,
    ) -> Any:  # fmt: skip
        if is_master:
            with contextlib.suppress(OSError):  # torch says why it cannot
                words["master_listen_fd"] = listen(host_name, port, world_size or 1).detach()
        return store(host_name, port, world_size, is_master, *more, **words)

    rendezvous.TCPStore = at_one_address
