"""Library of the hooks docker-cmd and docker-compose and their steps of os-refresh-config."""
