"""README and the documentation say what is true."""
