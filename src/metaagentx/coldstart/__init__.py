"""The cold start: demonstrations of a teacher, and supervised fine-tuning on them."""
