"""What ftcluster does: each operation takes a request and returns a result. Prints nothing."""
