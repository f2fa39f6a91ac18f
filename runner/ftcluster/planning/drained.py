"""Hosts that a plan leaves out because they are drained. Pure functions only."""

from ftcluster.cluster.saved import Cluster
from ftcluster.planning.plan import Decision, LaunchPlan

BACK = "take one back: ftcluster hosts return HOST"


def with_drained(plan: LaunchPlan, cluster: Cluster) -> LaunchPlan:
    """The plan with a decision for each host that is drained."""
    for name, one in cluster.drained.items():
        why = f"{one.why}, since {one.since}; ftcluster hosts return {name} takes it back"
        plan = plan.with_decision(Decision("drained", name, why))
    return plan
