"""Readers of files: PDF, office documents, tables, archives, as text for an agent."""
