"""What training adds to an environment's reward, and who is asked for it."""
