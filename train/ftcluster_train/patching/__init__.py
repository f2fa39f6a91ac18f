"""The only room that changes a model or a function of torch: a registry whose entries have guards.

`registry` says what an entry is. `patch_model` has the entries of a training, `script_functions`
and `script_models` those of a script of one's own (`ftcluster_train.fast`).
"""
