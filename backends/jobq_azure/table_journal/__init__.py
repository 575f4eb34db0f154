"""A journal in Azure Tables for both kinds of queue."""
