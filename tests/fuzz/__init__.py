"""Throws damaged input at everything that reads what others wrote."""
