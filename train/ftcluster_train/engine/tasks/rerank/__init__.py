"""Reranking: scores of pairs of a query and a text."""
