HUNG_AFTER = 600  # seconds until a process is taken for hung; a busy machine needs a fraction of that
