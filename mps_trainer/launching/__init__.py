"""What `mps-trainer config` asks and `mps-trainer launch` does. No part of training: it ends where a script begins."""
