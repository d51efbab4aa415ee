"""Ready environments, one module for each family of ids: it begins with a sample and ends with its demonstrator."""
