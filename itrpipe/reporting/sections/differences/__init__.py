"""Every run against its round one."""
