"""Reranking: scores of a query and a text."""
