"""Registers the environment of `lookup_world` where this is imported: in the process of a server."""

from lookup_world import ENV_ID

import palaestra

palaestra.register(ENV_ID, "lookup_world:Lookup")
