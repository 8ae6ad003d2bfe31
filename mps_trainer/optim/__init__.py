"""Creates optimizers and learning rate schedules."""
