"""The torch.distributed backend "impi": collectives over MPI."""
