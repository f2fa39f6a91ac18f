"""Token classification: prediction of a tag for each word."""
