"""The environment contract: short files, no environment among them."""
