"""Publishes `bf16_hook`: users' scripts import it from here (docs/run.md)."""

from ftcluster_train.comm.ddp_hook import bf16_hook

__all__ = ["bf16_hook"]
