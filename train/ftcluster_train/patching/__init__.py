"""The only package that changes models or functions of torch; each change is an entry with a guard.

`registry` defines entries. `patch_model` contains the entries for training. `script_functions` and
`script_models` contain the entries for a user's script (`ftcluster_train.fast`).
"""
