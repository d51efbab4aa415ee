"""Files that an agent may read: which ones (`place`), their kinds (`kinds`), and their text (`reading`).

Readers (`plain_text`, `documents`, `archive`) run in a process that is killed if a file takes too long.
"""
