"""An engine of vLLM servers, which sample turns over HTTP with the weights that a trainer sends them."""
