"""Answers to questions from retrieved passages, with citations."""
