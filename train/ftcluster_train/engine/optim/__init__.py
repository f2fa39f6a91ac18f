"""The optimizer step: gradient reduction, parameter layouts and AdamW."""
