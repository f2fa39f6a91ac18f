"""Is a cluster fit, and what is it worth: versions, all-reduce, links, speed."""
