"""Write a training for another scheduler."""
