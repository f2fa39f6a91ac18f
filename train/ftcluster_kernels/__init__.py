"""Functions of torch that run faster on CPUs; they know no model and replace nothing in torch."""
