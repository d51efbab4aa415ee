"""What an agent may read of files: which (`place`), what kind they are (`kinds`), and their text (`reading`).

Readers (`plain_text`, `documents`, `archive`) run in a process that is killed when a file takes it too long.
"""
