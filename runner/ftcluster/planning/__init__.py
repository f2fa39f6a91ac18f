"""What `ftcluster.plan` decides, a module a question. Pure functions only."""
