"""The operations of ftcluster: each takes a request, returns a result and prints nothing."""
