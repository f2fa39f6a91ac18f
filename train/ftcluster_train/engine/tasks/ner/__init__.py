"""Token classification: tags of words."""
