"""Which hosts a restart uses. Pure functions, standard library only."""

from collections.abc import Collection, Sequence

from ftcluster_common.launch import Host, Launch


def hosts_of_restart(launch: Launch, lost: Collection[Host]) -> tuple[Host, ...] | None:
    """The hosts that get ranks, the head first; None where too few are left.

    An idle host takes the place of a lost one, so that the ranks on all others keep their numbers.
    Where an earlier restart has left hosts out, idle hosts are added.

    Args:
        launch: with the hosts of the last start.
        lost: hosts that have not answered during this restart.
    """
    if launch.hosts[0] in lost:
        return None
    idle = [host for host in launch.idle if host not in lost]
    found = []
    for host in launch.hosts:
        if host not in lost:
            found.append(host)
        elif idle:
            found.append(idle.pop(0))
    found += idle[: launch.nodes - len(found)]
    if len(found) == launch.nodes or 0 < launch.min_nodes <= len(found):
        return tuple(found)
    return None


def change_notice(before: Sequence[Host], after: Sequence[Host]) -> str:
    """The notice that a restart uses other hosts; "" where it does not."""
    gone = ", ".join(host.name for host in before if host not in after)
    new = ", ".join(host.name for host in after if host not in before)
    if not new:
        return f"continuing without {gone}" if gone else ""
    return f"using {new} in place of {gone}" if gone else f"using {new} again"
