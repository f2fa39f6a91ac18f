"""The only package that changes models or functions of torch, by entries that each have a guard.

`registry` defines entries. `patch_model` has the entries for a training. `script_functions` and
`script_models` have the entries for a user's script (`ftcluster_train.fast`).
"""
