"""Texts from texts, with an encoder and a decoder."""
