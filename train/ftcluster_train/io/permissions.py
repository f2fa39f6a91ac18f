"""Values for os.umask: who else may read a run's files on a host."""

ACCOUNT_ONLY = 0o077  # tokenized data, and what was downloaded with a user's token
GROUP_READS = 0o027  # logs, events, models: also for members of the account's group
