"""Lines about transactional producers and read_committed fetches."""
