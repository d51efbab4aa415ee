"""Episodes to imitate and tasks to play: demonstrations, selection and curation."""
