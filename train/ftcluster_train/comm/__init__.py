"""Communication with torch.distributed: rendezvous, backends and the collectives of a step."""
