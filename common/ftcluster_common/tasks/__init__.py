"""The tasks: one module for each family of tasks; `registry` lists all tasks."""
