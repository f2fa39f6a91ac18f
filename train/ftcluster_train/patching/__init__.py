"""The only package that changes a model or a function of torch: a registry of guarded entries.

`registry` defines entries. `patch_model` has the entries of a training, `script_functions` and
`script_models` those of a user's script (`ftcluster_train.fast`).
"""
