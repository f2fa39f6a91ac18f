"""Export a training to another scheduler: Kubernetes or Slurm."""
