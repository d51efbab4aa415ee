"""Terms that training adds to the reward of an environment, and the judges that score some of them."""
