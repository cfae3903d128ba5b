"""Administrative requests to a broker."""
