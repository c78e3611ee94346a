"""A web application with Flask on a pool of connections."""
