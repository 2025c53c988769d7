"""What the hooks docker-cmd and docker-compose share, and their steps of os-refresh-config."""
