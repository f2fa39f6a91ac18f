"""Who else may read what a run leaves on a host; values for os.umask."""

# tokenised data, and what came from the Hub with a user's token
ACCOUNT_ONLY = 0o077
# logs, events, models: for the group of the account that trains, in which nobody else is by itself
GROUP_READS = 0o027
