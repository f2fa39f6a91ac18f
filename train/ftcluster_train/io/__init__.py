"""What a run writes: events, files that survive a crash, who may read them."""
