"""The optimizer step: gradients, parameters, AdamW."""
