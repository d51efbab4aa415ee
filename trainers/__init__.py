"""What learns: GRPO and its family, supervised fine-tuning, sampling of tasks, evaluation."""
