"""Whether a cluster is fit: `collect` asks its hosts, `document` judges, `text` shows it."""
