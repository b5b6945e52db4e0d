"""Calls to the Claude API: prices, requests, one classification of outcomes, and the client that retries."""
