"""Many runs: controls and sweeps."""
