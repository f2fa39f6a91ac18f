"""A cluster as setup saw it: facts of its hosts, and the record that later commands read."""
